#include "model/llama_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "model/testing/model_files.h"
#include "model/testing/prompts.h"

namespace kvlink::model {
namespace {

using testing::HasSubstr;

class DefaultTokenizer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    LoadOptions options;
    options.path = DefaultModelPath();
    ASSERT_NE(options.path, "") << "no default model: run the set-up, or set KVLINK_TEST_MODEL";
    auto model = Model::Load(options);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = *std::move(model);
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override { ASSERT_NE(model_, nullptr); }
  static const Tokenizer& tokenizer() { return model_->tokenizer(); }

  static inline std::unique_ptr<Model> model_;
};

TEST_F(DefaultTokenizer, TextSurvivesTheRoundTrip) {
  const std::string texts[] = {"Hello, world!",
                               "  leading and trailing  ",
                               "\n\n\ttabs\tand\nlines\n",
                               "图书馆每天早上九点开门，欢迎光临。",
                               "Zoë déjà vu 🚀👩‍👩‍👧 naïve",
                               "int main() {\n  return 0;  // done\n}\n",
                               "a , b . c ! d ' s",
                               "",
                               MakePrompt(3, 500)};
  for (const std::string& text : texts) {
    const auto tokens = tokenizer().Encode(text, false, false);
    EXPECT_EQ(tokenizer().Decode(tokens, false), text);
  }
}

TEST_F(DefaultTokenizer, PiecesConcatenateToTheTextEvenInsideACharacter) {
  const std::string text = "😀 ok 数";
  std::string joined;
  for (const TokenId token : tokenizer().Encode(text, false, false))
    joined += tokenizer().Piece(token, false);
  EXPECT_EQ(joined, text);
}

TEST_F(DefaultTokenizer, SpecialTextBecomesATokenOnlyWhenAsked) {
  EXPECT_EQ(tokenizer().Encode("<|im_end|>", false, true).size(), 1u);
  EXPECT_GT(tokenizer().Encode("<|im_end|>", false, false).size(), 1u);
  const TokenId end = tokenizer().Encode("<|im_end|>", false, true)[0];
  EXPECT_TRUE(tokenizer().IsEndOfGeneration(end));
  EXPECT_EQ(tokenizer().Piece(end, true), "<|im_end|>");
  EXPECT_EQ(tokenizer().Piece(end, false), "");
}

TEST_F(DefaultTokenizer, TokensOutOfRangeAreEmptyPieces) {
  const auto size = static_cast<TokenId>(tokenizer().vocab_size());
  EXPECT_EQ(size, 49152);
  for (const TokenId token : {-1, size, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer().Piece(token, true), "");
    EXPECT_FALSE(tokenizer().IsEndOfGeneration(token));
  }
}

TEST_F(DefaultTokenizer, InvalidUtf8IsEncodedWithoutHarm) {
  const std::string bad = std::string("ok \xff\xfe\xc3( \x80 end") + '\0' + "tail";
  EXPECT_FALSE(tokenizer().Encode(bad, false, false).empty());
}

TEST_F(DefaultTokenizer, LongTextOfOneCharacterIsEncoded) {
  for (const char c : {'a', ' ', '\n', '0', '.'}) {
    const std::string text(200000, c);
    EXPECT_EQ(tokenizer().Decode(tokenizer().Encode(text, false, false), false), text);
  }
}

TEST_F(DefaultTokenizer, ManyThreadsGetTheSameTokens) {
  const std::string text = MakePrompt(4, 300);
  const auto expected = tokenizer().Encode(text, true, true);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(tokenizer().Encode(text, true, true), expected);
        EXPECT_EQ(tokenizer().Decode(expected, true), text);
        EXPECT_TRUE(tokenizer()
                        .ApplyChatTemplate(std::vector<ChatMessage>{{"user", text, ""}}, "", true)
                        .ok());
      }
    });
  }
}

TEST_F(DefaultTokenizer, ChatTemplateIsTheModels) {
  const std::vector<ChatMessage> messages = {{"system", "You are brief.", ""},
                                             {"user", "Hi", ""},
                                             {"assistant", "Hello.", ""},
                                             {"user", "Bye", ""}};
  auto text = tokenizer().ApplyChatTemplate(messages, "", true);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(*text,
            "<|im_start|>system\nYou are brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>"
            "assistant\n");
  auto without = tokenizer().ApplyChatTemplate(messages, "", false);
  EXPECT_EQ(*without + "<|im_start|>assistant\n", *text);
}

TEST_F(DefaultTokenizer, WholeMessageObjectsAreTaken) {
  const std::vector<ChatMessage> messages = {
      {"user", "",
       R"({"role":"user","content":[{"type":"text","text":"part one"}],"name":"bob"})"}};
  auto text = tokenizer().ApplyChatTemplate(messages, "", true);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_THAT(*text, HasSubstr("part one"));
}

TEST_F(DefaultTokenizer, BadMessagesAndToolsAreInvalidArgument) {
  const std::vector<ChatMessage> broken = {{"user", "", "{not json"}}, good = {{"user", "hi", ""}};
  EXPECT_EQ(tokenizer().ApplyChatTemplate(broken, "", true).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer().ApplyChatTemplate(good, "{}", true).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer().ApplyChatTemplate(good, "][", true).status().code(),
            StatusCode::kInvalidArgument);
}

class TemplateTest : public testing::Test {
 protected:
  std::unique_ptr<Model> LoadWithTemplate(const char* chat_template) {
    TinyModel tiny;
    tiny.edit_keys = [&](gguf_context* keys) {
      if (chat_template != nullptr)
        gguf_set_val_str(keys, "tokenizer.chat_template", chat_template);
    };
    LoadOptions options;
    options.path = TestFolder() + "/" +
                   testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
    EXPECT_TRUE(WriteTinyModel(tiny, options.path));
    auto model = Model::Load(options);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return *std::move(model);
  }
  const std::vector<ChatMessage> hi_ = {{"user", "hi", ""}};
};

TEST_F(TemplateTest, NoTemplateIsUnimplemented) {
  const auto model = LoadWithTemplate(nullptr);
  EXPECT_EQ(model->tokenizer().ApplyChatTemplate(hi_, "", true).status().code(),
            StatusCode::kUnimplemented);
}

TEST_F(TemplateTest, RefusalCarriesTheTemplatesWords) {
  const auto model = LoadWithTemplate(
      "{%- if messages|length > 1 %}{{ raise_exception('one message only, please') }}{% endif %}"
      "{{ messages[0]['content'] }}");
  EXPECT_EQ(*model->tokenizer().ApplyChatTemplate(hi_, "", true), "hi");
  const std::vector<ChatMessage> two = {{"user", "hi", ""}, {"user", "again", ""}};
  const Status status = model->tokenizer().ApplyChatTemplate(two, "", true).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("one message only, please"));
}

TEST_F(TemplateTest, ToolsReachTheTemplate) {
  const auto model = LoadWithTemplate(
      "{%- for tool in tools %}[{{ tool['function']['name'] }}]{% endfor -%}"
      "{%- for m in messages %}{{ m['role'] }}: {{ m['content'] }};"
      "{%- for call in m.tool_calls %}<{{ call.function.name }}>{% endfor %}{% endfor %}");
  const std::string tools =
      R"([{"type":"function","function":{"name":"clock","description":"tells the time","parameters":{}}}])";
  auto text = model->tokenizer().ApplyChatTemplate(hi_, tools, false);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_THAT(*text, HasSubstr("[clock]"));
  const std::vector<ChatMessage> with_call = {
      {"user", "hi", ""},
      {"assistant", "",
       R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"clock","arguments":"{}"}}]})"}};
  auto called = model->tokenizer().ApplyChatTemplate(with_call, tools, false);
  ASSERT_TRUE(called.ok()) << called.status().ToString();
  EXPECT_THAT(*called, HasSubstr("<clock>"));
}

}  // namespace
}  // namespace kvlink::model
