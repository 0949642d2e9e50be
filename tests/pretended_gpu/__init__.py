"""A GPU that is none: tensors say `cuda:0` and compute on the CPU, so that a GPU's paths run, with their answers.

    with PretendedGpu() as gpu:
        denoiser = Denoiser(gpu.move(model), ...)
        answers = decode_canvases(denoiser, ...)
    assert not gpu.report.waits

It refuses or counts what CUDA would refuse, wait for or get wrong:

    mixed devices    operators over tensors of several devices (a number of the host is allowed where CUDA allows it)
    waits            `.item()`, nonzero, boolean indices, copies to pageable memory
    blocking copies  from pageable memory, and indices of the host
    races            copies from pinned memory are done when the host waits; until then it must not overwrite them
    graphs           nothing runs while one is recorded; a replay runs on the recorded tensors, and memory that nobody
                     held when it was complete is garbage
    memory           live and peak bytes; a model of any size may lie on the meta device

No build of torch with CUDA and no compiler is needed; `calls.py` says which builds fit. It says nothing of numerics in
narrow dtypes, of seconds, or of what a kernel takes beside its result, but for attention.

    device      sees every operator, and counts
    operators   what is known of ATen's operators on CUDA
    attention   which kernel takes what
    calls       functions of `torch` and `torch.cuda` that no operator stands for
    tensors     what says that it is on a GPU, its bytes there, and copies that nobody waits for
    graphs      CUDA graphs
    settings    ways of decoding and scoring, to run on it
    peaks       models of published widths, and their bytes
"""

from tests.pretended_gpu.device import GPU, PretendedGpu
from tests.pretended_gpu.report import PretendedGpuError, Report
from tests.pretended_gpu.tensors import GpuTensor

__all__ = ["GPU", "GpuTensor", "PretendedGpu", "PretendedGpuError", "Report"]
