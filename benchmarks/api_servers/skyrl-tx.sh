# skyrl-tx: its API starts an engine on JAX by `uv run`, for which its checkout is needed; here uv is this environment.
mkdir -p bin
printf '#!/bin/bash\nwhile [ "$1" != -m ]; do shift; done\nexec "%s" "$@"\n' "$PYTHON" > bin/uv
chmod +x bin/uv
export PATH="$FOLDER/bin:$PATH" JAX_PLATFORMS=cpu
# What a killed engine compiled, its successor need not compile again.
export JAX_COMPILATION_CACHE_DIR="$FOLDER/compiled"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
run -m tx.tinker.api --base-model "$FOLDER/models/qwen" --backend jax \
  --backend-config '{"max_lora_adapters": 256, "max_lora_rank": 4}' \
  --checkpoints-base "$FOLDER/checkpoints" --database-url "sqlite:///$FOLDER/tinker.db" --port "$PORT"
