"""What CUDA's driver reports of a GPU, asked directly: no context is created, no memory taken."""

from __future__ import annotations

import ctypes
import sys

from vramplan.dataclass import dataclass

_MULTIPROCESSOR_COUNT, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76
"""Of the enumeration CUdevice_attribute (cuda.h, CUDA 13)."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """A GPU as torch.cuda.get_device_properties shows it."""

    total_bytes: int
    """Memory that a process can see."""
    compute_capability: str
    """Such as 8.9."""
    multiprocessors: int
    """Streaming multiprocessors."""


def device_properties(device: int = 0) -> DeviceProperties | None:
    """Properties of CUDA's device number `device`; None if there is no driver, or it does not answer."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        handle, total = ctypes.c_int(), ctypes.c_size_t()
        values = [ctypes.c_int() for _ in range(3)]
        errors = [
            driver.cuInit(0),
            driver.cuDeviceGet(ctypes.byref(handle), device),
            driver.cuDeviceTotalMem_v2(ctypes.byref(total), handle),
        ]
        for value, attribute in zip(values, (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSOR_COUNT), strict=True):
            errors.append(driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle))
    except (OSError, AttributeError):
        return None
    if any(errors):
        return None
    major, minor, multiprocessors = (value.value for value in values)
    return DeviceProperties(total.value, f"{major}.{minor}", multiprocessors)
