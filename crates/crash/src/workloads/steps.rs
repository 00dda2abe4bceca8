//! Shorthands for the operations that scripts and patterns are made of.

use stetfs_testkit::world::op::{Durable, Op, Payload};

pub(super) fn append(slot: u8, seed: u16, len: u32) -> Op {
    Op::Append {
        slot,
        payload: Payload { seed, len },
    }
}

pub(super) fn create(path: &str) -> Op {
    Op::Create {
        path: path.to_owned(),
        mode: 0o644,
        exclusive: false,
    }
}

pub(super) fn fdatasync(slot: u8) -> Op {
    Op::Fdatasync { slot }
}

pub(super) fn fsync(slot: u8) -> Op {
    Op::Fsync { slot }
}

pub(super) fn fsync_dir(path: &str) -> Op {
    Op::FsyncDir { path: path.into() }
}

pub(super) fn open(slot: u8, path: &str) -> Op {
    Op::Open {
        slot,
        path: path.to_owned(),
        truncate: false,
    }
}

pub(super) fn unlink(path: &str) -> Op {
    Op::Unlink {
        path: path.to_owned(),
    }
}

pub(super) fn write(slot: u8, offset: u64, seed: u16, len: u32) -> Op {
    Op::Write {
        slot,
        offset,
        payload: Payload { seed, len },
        durable: Durable::No,
    }
}
