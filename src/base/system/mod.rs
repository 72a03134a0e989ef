//! What the system and the processor are asked by calls for which there is no safe function.

#![allow(unsafe_code, reason = "it is what this module is for")]

pub(crate) mod block_device;
pub(crate) mod files;
pub(crate) mod fork;
mod prefetch;

pub(crate) use prefetch::prefetch_line;
