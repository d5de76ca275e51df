"""KVLink inside vLLM: `KVLinkConnector`, named with kv_connector_module_path "kvlink.vllm".

docs/vllm.md says how to run it. Importing this package does not import vLLM; the connector does.
"""

__all__ = ["KVLinkConnector"]


def __getattr__(name):
    if name == "KVLinkConnector":
        from kvlink.vllm.connector import KVLinkConnector

        return KVLinkConnector
    raise AttributeError(f"module 'kvlink.vllm' has no attribute '{name}'")
