#!/usr/bin/env python3
"""Writes smoke.jsonl, the small workload that ships with KVLink: usage: make_smoke.py > smoke.jsonl

Eight customers talk to a made-up bicycle shop over one policy (a shared prefix of some 600 tokens, two or three turns), and
two prompts ask for four sampled branches each. Small enough for a test, with every kind of sharing in it.
"""
import json

POLICY = """You are the assistant of Larkspur Cycles, a bicycle shop with a workshop and a rental desk by the canal.
Answer in one or two sentences. If the rules below do not cover a question, say that a colleague will call back.

Opening hours. The shop is open from nine in the morning to half past six in the evening, Tuesday to Saturday. The rental
desk opens an hour earlier and also on Sundays from April to October. The workshop takes bicycles in until five.

Returns. A new bicycle may come back within thirty days if it was ridden for less than fifty kilometres; the frame number
and the receipt are checked. Helmets come back only in the unopened box. Clothes may be tried on at home and come back
within fourteen days with the label on. Batteries and made-to-measure wheels are never taken back. Money goes back to the
card that paid, within five working days; gift cards are refunded as gift cards.

Repairs. An inspection costs thirty-nine euros and is taken off the bill when the repair is done with us. A flat tyre is
mended while the customer waits, for twelve euros, the tube included. Brakes, chains and gears take two working days.
Electric motors are sent to the maker, which takes about three weeks; a loan bicycle costs eight euros a day meanwhile.
Bicycles that are not picked up sixty days after the second message are sold to cover the bill.

Rentals. A city bicycle costs fourteen euros a day, a cargo bicycle thirty-two, an electric one thirty-eight. A deposit of
one hundred euros is blocked on a card, three hundred for cargo and electric bicycles. Children under twelve ride free on
a child's bicycle when an adult rents one. A rental that comes back late costs half a day for each three hours begun. A
booking can be cancelled free of charge until six in the evening before; after that one day is charged.

Theft. Every bicycle that we sell is registered with its frame number for ten years without charge. When one is stolen, the
customer reports it to the police first and then sends us the report's number; we lock the registration and tell the
workshops we work with. The insurance that we sell covers theft only when the bicycle was locked to something fixed.

Orders. Parts that are in the warehouse arrive in two working days, others in three weeks or less. Orders above sixty euros
are delivered free of charge; below that delivery costs six euros. A wrong part is exchanged when it was not mounted.
"""

CHATS = [
    ["Can I bring back the bicycle I bought three weeks ago? I rode it to work twice.",
     "And the helmet that came with it?"],
    ["Can I bring back the jacket I ordered? It is too small.",
     "Where does the money go? I paid with a gift card.", "How long does that take?"],
    ["My chain jumps. How long do you need to look at it?",
     "What does the inspection cost if I then have it repaired at your shop?"],
    ["The motor of my electric bicycle makes a noise. Can you mend it this week?",
     "What can I ride in the meantime, and what does that cost?"],
    ["We would like to rent a cargo bicycle on Sunday in May. Are you open?",
     "How much is blocked on my card?", "Can our daughter, who is nine, get a bicycle too?"],
    ["I am stuck in traffic and will bring the rental back four hours late. What will it cost?",
     "And if I had cancelled this morning?"],
    ["My bicycle was stolen last night. What shall I do?",
     "It was locked, but not to anything. Does the insurance pay?"],
    ["I ordered brake pads and got the wrong ones. Can I exchange them?",
     "What does delivery cost for an order of forty euros?", "When will they be here?"],
]

BRANCHES = [
    "Write a friendly one-line message telling a customer that the repaired bicycle is ready to be picked up.",
    "Suggest a name for a new city bicycle with a blue frame and a wicker basket.",
]


def turn(messages, max_tokens, **more):
    return {"messages": [{"role": r, "content": c} for r, c in messages], "max_tokens": max_tokens, **more}


def main():
    for i, questions in enumerate(CHATS):
        turns = [turn([("user", q)], 16) for q in questions]
        turns[0]["messages"].insert(0, {"role": "system", "content": POLICY})
        print(json.dumps({"id": f"shop_{i}", "tenant": "larkspur", "turns": turns}))
    for i, question in enumerate(BRANCHES):
        messages = [("system", POLICY), ("user", question)]
        print(json.dumps({"id": f"ideas_{i}", "tenant": "larkspur", "turns": [turn(messages, 16, n=4)]}))


if __name__ == "__main__":
    main()
