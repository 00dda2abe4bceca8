//! What a virtual machine is told of the disk: features, and `struct virtio_blk_config` (virtio
//! 1.2, 5.2.3 and 5.2.4).

use stetfs_format::width::{must_fit_u16, must_fit_u32, u32_as_usize};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::ByteDev;

/// The unit of sectors in requests and of the capacity, in bytes, whatever the block size is.
pub(super) const SECTOR: u64 = 512;
/// Queues that a machine may use: QEMU wants one for each of its processors.
pub(super) const QUEUES: usize = 64;
/// Requests that a queue has at most.
pub(super) const QUEUE_SIZE: u16 = 1024;
/// Buffers of a request: with head and status it fits into a queue of 128, QEMU's default.
const SEGMENTS: u32 = 126;
/// Ranges of a discard.
pub(super) const RANGES: usize = 16;
/// Sectors of such a range: a GiB.
pub(super) const RANGE_SECTORS: u32 = 1 << 21;
/// Linux takes no larger block.
const MOST_BLOCK: u32 = 4096;

/// Where the configuration has the state of the cache: 0: each write is durable when it is
/// answered, 1: behind a flush.
pub(super) const WRITEBACK_AT: u32 = 32;
/// Bytes of the configuration, up to the discards' end.
const LEN: usize = 60;

/// The features of virtio that the disk has.
pub(super) fn features(dev: &ByteDev) -> u64 {
    let always = [
        VIRTIO_F_VERSION_1,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_CONFIG_WCE,
        VIRTIO_BLK_F_MQ,
    ];
    let rest: &[u32] = if dev.dev().read_only() {
        &[VIRTIO_BLK_F_RO]
    } else {
        &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]
    };
    let all = always.iter().chain(rest);
    all.fold(0, |bits, feature| bits | 1 << feature)
}

/// The configuration.
pub(super) fn config(dev: &ByteDev, is_write_back: bool) -> [u8; LEN] {
    let mut config = [0; LEN];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    let block = dev.sector_size().clamp(512, MOST_BLOCK);
    let ranges = must_fit_u32(RANGES);
    put(0, &(dev.size() / SECTOR).to_le_bytes());
    put(12, &SEGMENTS.to_le_bytes());
    put(20, &block.to_le_bytes());
    put(u32_as_usize(WRITEBACK_AT), &[is_write_back.into()]);
    put(34, &must_fit_u16(QUEUES).to_le_bytes());
    // Discards: the longest range, how many, and their unit in sectors. Zeroing: the same.
    put(36, &RANGE_SECTORS.to_le_bytes());
    put(40, &ranges.to_le_bytes());
    put(44, &(block / 512).to_le_bytes());
    put(48, &RANGE_SECTORS.to_le_bytes());
    put(52, &ranges.to_le_bytes());
    config
}
