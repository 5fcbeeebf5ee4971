# shellcheck shell=bash
# Generated from src/slipway/base/contract.py by build/generate: do not edit. The settings of all
# job scripts and their valid values; docs/reference/settings.md describes them.
readonly SETTINGS=(
    USE_CONTAINER
    BACKEND
    SLIPWAY_IMAGE
    SLIPWAY_VENV
    SLIPWAY_CONFIG
    SLIPWAY_SCRIPT
    SLIPWAY_ADAPT
    SLIPWAY_DATA
    SLIPWAY_OUTPUT
    SLIPWAY_RUN_DIR
    SLIPWAY_DEVICE
    SLIPWAY_RANKS_PER_NODE
    SLIPWAY_DEVICES_PER_RANK
    SLIPWAY_NODES
    SLIPWAY_MIN_NODES
    SLIPWAY_WAIT_SECONDS
    SLIPWAY_MAX_REQUEUES
    SLIPWAY_MAX_RESTARTS
    SLIPWAY_SPARES
    SLIPWAY_SHRINK
    SLIPWAY_NOTIFY
    SLIPWAY_NOTIFY_SECONDS
    SLIPWAY_PROBE_SECONDS
    SLIPWAY_PROFILER
    SLIPWAY_LOCAL_DISK
    SLIPWAY_STAGE
    SLIPWAY_PREFLIGHT_SECONDS
    SLIPWAY_ARGS
    SLIPWAY_LIB
    SLIPWAY_TRUSTED_FOLDER
    SLIPWAY_VARIANT
    SLIPWAY_WHEELHOUSE
    SLIPWAY_PYTHON
    SLIPWAY_HOROVOD
    SLIPWAY_NCCL_PATH
    SLIPWAY_BASE_IMAGE
    SLIPWAY_BUILD_ARGS
)
# Settings that name a file or a folder, relative to the submission folder.
readonly PATH_SETTINGS=(
    SLIPWAY_IMAGE
    SLIPWAY_VENV
    SLIPWAY_CONFIG
    SLIPWAY_SCRIPT
    SLIPWAY_DATA
    SLIPWAY_OUTPUT
    SLIPWAY_RUN_DIR
    SLIPWAY_NOTIFY
    SLIPWAY_LOCAL_DISK
    SLIPWAY_WHEELHOUSE
    SLIPWAY_NCCL_PATH
)
# Extended regular expressions that match the whole value.
declare -Ar SETTING_PATTERN=(
    [USE_CONTAINER]='^[01]$'
    [BACKEND]='^(ddp|horovod|single)$'
    [SLIPWAY_IMAGE]='^[^[:cntrl:]]+$'
    [SLIPWAY_VENV]='^[^[:cntrl:]]+$'
    [SLIPWAY_CONFIG]='^[^[:cntrl:]]+$'
    [SLIPWAY_SCRIPT]='^$|^[^[:cntrl:]]+$'
    [SLIPWAY_ADAPT]='^[01]$'
    [SLIPWAY_DATA]='^$|^[^[:cntrl:]]+$'
    [SLIPWAY_OUTPUT]='^[^[:cntrl:]]+$'
    [SLIPWAY_RUN_DIR]='^$|^[^[:cntrl:]]+$'
    [SLIPWAY_DEVICE]='^(cuda|cpu|auto)$'
    [SLIPWAY_RANKS_PER_NODE]='^$|^[1-9][0-9]{0,2}$'
    [SLIPWAY_DEVICES_PER_RANK]='^$|^[1-9][0-9]{0,2}$'
    [SLIPWAY_NODES]='^[1-9][0-9]{0,5}$'
    [SLIPWAY_MIN_NODES]='^$|^[1-9][0-9]{0,5}$'
    [SLIPWAY_WAIT_SECONDS]='^[1-9][0-9]{0,5}$'
    [SLIPWAY_MAX_REQUEUES]='^(0|[1-9][0-9]{0,5})$'
    [SLIPWAY_MAX_RESTARTS]='^(0|[1-9][0-9]{0,5})$'
    [SLIPWAY_SPARES]='^(0|[1-9][0-9]{0,5})$'
    [SLIPWAY_SHRINK]='^[01]$'
    [SLIPWAY_NOTIFY]='^$|^[^[:cntrl:]]+$'
    [SLIPWAY_NOTIFY_SECONDS]='^([1-9][0-9]{0,5}|0?[.]0{0,2}[1-9][0-9]{0,2})$'
    [SLIPWAY_PROBE_SECONDS]='^([1-9][0-9]{0,5}|0?[.]0{0,2}[1-9][0-9]{0,2})$'
    [SLIPWAY_PROFILER]='^$|^(nsys)$'
    [SLIPWAY_LOCAL_DISK]='^[^[:cntrl:]]+$'
    [SLIPWAY_STAGE]='^[01]$'
    [SLIPWAY_PREFLIGHT_SECONDS]='^[1-9][0-9]{0,5}$'
    [SLIPWAY_LIB]='^$|^[^[:cntrl:]]+$'
    [SLIPWAY_TRUSTED_FOLDER]='^$|^/[^[:cntrl:]]+$'
    [SLIPWAY_VARIANT]='^[A-Za-z0-9._-]+$'
    [SLIPWAY_WHEELHOUSE]='^$|^[^[:cntrl:]]+$'
    [SLIPWAY_PYTHON]='^[^[:cntrl:]]+$'
    [SLIPWAY_HOROVOD]='^[01]$'
    [SLIPWAY_NCCL_PATH]='^$|^[^[:cntrl:]]+$'
    [SLIPWAY_BASE_IMAGE]='^$|^[^[:cntrl:]]*$'
    [SLIPWAY_BUILD_ARGS]='^$|^[^[:cntrl:]]*$'
)
declare -Ar SETTING_EXPECTED=(
    [USE_CONTAINER]='0 or 1'
    [BACKEND]='ddp or horovod or single'
    [SLIPWAY_IMAGE]='a path without control characters'
    [SLIPWAY_VENV]='a path without control characters'
    [SLIPWAY_CONFIG]='a path without control characters'
    [SLIPWAY_SCRIPT]='a path without control characters'
    [SLIPWAY_ADAPT]='0 or 1'
    [SLIPWAY_DATA]='a path without control characters'
    [SLIPWAY_OUTPUT]='a path without control characters'
    [SLIPWAY_RUN_DIR]='a path without control characters'
    [SLIPWAY_DEVICE]='cuda or cpu or auto'
    [SLIPWAY_RANKS_PER_NODE]='a whole number from 1 to 999'
    [SLIPWAY_DEVICES_PER_RANK]='a whole number from 1 to 999'
    [SLIPWAY_NODES]='a whole number, at least 1'
    [SLIPWAY_MIN_NODES]='a whole number, at least 1'
    [SLIPWAY_WAIT_SECONDS]='a whole number, at least 1'
    [SLIPWAY_MAX_REQUEUES]='a whole number, at least 0'
    [SLIPWAY_MAX_RESTARTS]='a whole number, at least 0'
    [SLIPWAY_SPARES]='a whole number, at least 0'
    [SLIPWAY_SHRINK]='0 or 1'
    [SLIPWAY_NOTIFY]='a path without control characters'
    [SLIPWAY_NOTIFY_SECONDS]='seconds: a whole number, or a fraction below 1 such as 0.5'
    [SLIPWAY_PROBE_SECONDS]='seconds: a whole number, or a fraction below 1 such as 0.5'
    [SLIPWAY_PROFILER]=nsys
    [SLIPWAY_LOCAL_DISK]='a path without control characters'
    [SLIPWAY_STAGE]='0 or 1'
    [SLIPWAY_PREFLIGHT_SECONDS]='a whole number, at least 1'
    [SLIPWAY_ARGS]=text
    [SLIPWAY_LIB]='a path without control characters'
    [SLIPWAY_TRUSTED_FOLDER]='an absolute path without control characters, other than /'
    [SLIPWAY_VARIANT]='a name of letters, digits, dot, dash and underscore'
    [SLIPWAY_WHEELHOUSE]='a path without control characters'
    [SLIPWAY_PYTHON]='a path without control characters'
    [SLIPWAY_HOROVOD]='0 or 1'
    [SLIPWAY_NCCL_PATH]='a path without control characters'
    [SLIPWAY_BASE_IMAGE]='text on one line'
    [SLIPWAY_BUILD_ARGS]='text on one line'
)
# Variables with the prefix that are not settings.
readonly OTHER_VARIABLES=(
    SLIPWAY_CACHE
    SLIPWAY_CLIENT
    SLIPWAY_EXPORTED
    SLIPWAY_FORBID_SKIPS
    SLIPWAY_LAUNCH
    SLIPWAY_NODE_STARTED
    SLIPWAY_SITE
    SLIPWAY_SITES
    SLIPWAY_TEST_IMAGE
    SLIPWAY_TRACKERS
    SLIPWAY_WRITE_GOLDEN
)
