# hatchery-core: a gateway and a worker, with the stores on disk that it has.
export TMPDIR="$FOLDER"
export HATCHERY_ADMIN_API_KEY=tml-any HATCHERY_WORKER_DEVICE=cpu HATCHERY_BASE_MODEL="$FOLDER/models/qwen"
export HATCHERY_METADATA_STORE=sqlite HATCHERY_SQLITE_PATH="$FOLDER/metadata.db"
export HATCHERY_JOB_QUEUE=sqlite HATCHERY_SQLITE_QUEUE_PATH="$FOLDER/queue.db"
export HATCHERY_LOCAL_STORE_PATH="$FOLDER/store"
run -m uvicorn --factory hatchery.core.gateway:create_app --port "$PORT"
run -m hatchery.core.worker
