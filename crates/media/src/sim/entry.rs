//! One change of a simulated medium.

use std::fmt;
use std::sync::Arc;

use crate::error::Op;
use crate::sim::fault::Failure;
use crate::sim::timing::Request;
use crate::tag::{Cause, Tag};
use stetfs_format::width::{u64_as_usize, usize_as_u64};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Bytes written.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes, in whole sectors.
        data: Arc<[u8]>,
        /// What the bytes are and why they were written.
        tag: Tag,
        /// Whether the bytes were durable when the write returned.
        durable: bool,
    },
    /// A range declared unneeded. A power cut keeps or loses it as a whole.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Everything before it became durable.
    Flush {
        /// Why.
        cause: Cause,
    },
    /// Bytes stored into persistent memory.
    Store {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
        /// What the bytes are and why they were stored.
        tag: Tag,
        /// Whether the store bypassed the processor's cache.
        past_cache: bool,
    },
    /// The write-back of a range's cache lines to persistent memory began.
    FlushLines {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What lies there and why it was flushed.
        tag: Tag,
    },
    /// Everything flushed before it, or stored past the cache, became durable.
    Fence {
        /// Why.
        cause: Cause,
    },
}

impl Entry {
    /// Returns request, offset and length in bytes, as errors name them.
    pub(crate) fn range(&self) -> (Op, u64, u64) {
        match self {
            Self::Write { offset, data, .. } => (Op::Write, *offset, usize_as_u64(data.len())),
            Self::Discard { offset, len } => (Op::Discard, *offset, *len),
            Self::Flush { .. } | Self::Fence { .. } => (Op::Flush, 0, 0),
            Self::Store { offset, data, .. } => (Op::Write, *offset, usize_as_u64(data.len())),
            Self::FlushLines { offset, len, .. } => (Op::Flush, *offset, *len),
        }
    }

    /// Returns the request as the timing model of a block device sees it.
    pub(crate) fn timed(&self) -> Request {
        match self {
            Self::Write {
                offset,
                data,
                durable,
                ..
            } => Request::Write {
                offset: *offset,
                len: usize_as_u64(data.len()),
                durable: *durable,
            },
            Self::Discard { offset, len } => Request::Discard {
                offset: *offset,
                len: *len,
            },
            Self::Flush { .. } => Request::Flush,
            Self::Store { .. } | Self::FlushLines { .. } | Self::Fence { .. } => {
                unreachable!("{self} on a block device")
            }
        }
    }

    /// Returns what happens on the device when the request fails in this way; `None`: nothing.
    pub(crate) fn after(self, failure: Failure, sector: u32) -> Option<Self> {
        match (failure, self) {
            (
                Failure::Torn { sectors },
                Self::Write {
                    offset, data, tag, ..
                },
            ) => {
                let len = u64_as_usize(
                    (u64::from(sectors) * u64::from(sector)).min(usize_as_u64(data.len())),
                );
                let data = data[..len].into();
                if len == 0 {
                    None
                } else {
                    Some(Self::Write {
                        offset,
                        data,
                        tag,
                        durable: false,
                    })
                }
            }
            _ => None,
        }
    }
}

/// Formats as a line of a trace: `write 8192+4096 inode_table/log`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write {
                offset,
                data,
                tag,
                durable,
            } => {
                let durable = if *durable { " durable" } else { "" };
                write!(f, "write {offset}+{} {tag}{durable}", data.len())
            }
            Self::Discard { offset, len } => write!(f, "discard {offset}+{len}"),
            Self::Flush { cause } => write!(f, "flush {cause}"),
            Self::Store {
                offset,
                data,
                tag,
                past_cache,
            } => {
                let how = if *past_cache { "store_nt" } else { "store" };
                write!(f, "{how} {offset}+{} {tag}", data.len())
            }
            Self::FlushLines { offset, len, tag } => write!(f, "flush {offset}+{len} {tag}"),
            Self::Fence { cause } => write!(f, "fence {cause}"),
        }
    }
}
