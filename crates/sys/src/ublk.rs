//! Block devices that a process serves, by the kernel's driver `ublk_drv`: its commands, and the
//! queue of requests.
//!
//! Source: Linux, `include/uapi/linux/ublk_cmd.h` (`struct ublksrv_ctrl_cmd`, `ublksrv_io_cmd`,
//! `ublksrv_io_desc`) and `Documentation/block/ublk.rst`. Commands are those of Linux 6.3 and later
//! (`UBLK_F_CMD_IOCTL_ENCODE`).

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::ioctl::opcode::{read, read_write};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::uring::{ended, enter, no_ring};

/// `struct ublksrv_ctrl_cmd`: its size is part of a command's number.
type ControlCommand = [u8; 32];
/// `struct ublksrv_io_cmd`.
type IoCommand = [u8; 16];

const GROUP: u8 = b'u';

/// A command to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `UBLK_U_CMD_GET_DEV_INFO`: reads a device's `ublksrv_ctrl_dev_info`.
    GetInfo,
    /// `UBLK_U_CMD_ADD_DEV`: makes a device after such a record, and writes into the record what
    /// the driver has made of it.
    Add,
    /// `UBLK_U_CMD_START_DEV`: waits until the queues are there, and shows the device.
    Start,
    /// `UBLK_U_CMD_STOP_DEV`: takes the device away from its users.
    Stop,
    /// `UBLK_U_CMD_SET_PARAMS`: takes a `struct ublk_params`.
    SetParams,
    /// `UBLK_U_CMD_DEL_DEV_ASYNC` (Linux 6.9): removes a device as soon as nobody has it open.
    Delete,
}

impl Command {
    const fn number(self) -> u32 {
        match self {
            Self::GetInfo => read::<ControlCommand>(GROUP, 0x02),
            Self::Add => read_write::<ControlCommand>(GROUP, 0x04),
            Self::Start => read_write::<ControlCommand>(GROUP, 0x06),
            Self::Stop => read_write::<ControlCommand>(GROUP, 0x07),
            Self::SetParams => read_write::<ControlCommand>(GROUP, 0x08),
            Self::Delete => read::<ControlCommand>(GROUP, 0x14),
        }
    }
}

/// `UBLK_U_IO_FETCH_REQ`: the driver may send a request with this tag.
const FETCH: u32 = read_write::<IoCommand>(GROUP, 0x20);
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`: it is answered, and the driver may send the next.
const COMMIT_AND_FETCH: u32 = read_write::<IoCommand>(GROUP, 0x21);

/// `UBLK_MAX_QUEUE_DEPTH`: the most requests of a queue.
pub const MOST_DEPTH: u16 = 4096;

/// The driver's control device, `/dev/ublk-control`.
pub struct Control {
    ring: Box<IoUring<Entry128, cqueue::Entry>>,
    file: File,
}

impl Control {
    /// Takes the opened device.
    ///
    /// # Errors
    /// There is no io_uring, or this process may not have one.
    pub fn new(file: File) -> Result<Self, Errno> {
        let ring = IoUring::<Entry128, cqueue::Entry>::builder().build(1);
        let ring = Box::new(ring.map_err(no_ring)?);
        Ok(Self { ring, file })
    }

    /// Gives a command about device `device` (`u32::MAX`: about none), with the word `data` and a
    /// record that the driver reads or writes, and waits for its end.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// The record has 64 KiB or more.
    pub fn command(
        &mut self,
        command: Command,
        device: u32,
        data: u64,
        record: &mut [u8],
    ) -> Result<(), Errno> {
        let len = u16::try_from(record.len()).expect("records are short");
        let address = record.as_mut_ptr().expose_provenance();
        let address = u64::try_from(address).expect("addresses have 64 bits at most");
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&device.to_ne_bytes());
        // It concerns no queue.
        bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        bytes[6..8].copy_from_slice(&len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&data.to_ne_bytes());
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command.number()).cmd(bytes);
        // SAFETY: the command names `record`, which this call borrows until it has seen the end of
        // the command. The descriptor is ours.
        let pushed = unsafe { self.ring.submission().push(&entry.build()) };
        assert!(pushed.is_ok(), "the ring has room for its one command");
        loop {
            enter(&self.ring, 1);
            if let Some(entry) = self.ring.completion().next() {
                return ended(&entry);
            }
        }
    }
}

/// A request, as `struct ublksrv_io_desc` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What is asked for, in the lowest eight bits, and flags.
    pub op_flags: u32,
    /// How many sectors of 512 bytes.
    pub sectors: u32,
    /// The first of them.
    pub first_sector: u64,
    /// Not used where the server copies the data.
    pub address: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 24);

/// Wakes the thread that waits in [`Queue::turn`].
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Wakes it, now or when it next waits.
    pub fn wake(&self) {
        // It can only be full, and wakes then too.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// The requests of a device. It belongs to the thread that made it: the driver takes answers from
/// that one alone.
pub struct Queue {
    ring: IoUring,
    device: File,
    descriptors: NonNull<Descriptor>,
    mapped: usize,
    depth: u16,
    woken: Arc<OwnedFd>,
    /// Tags that the driver has.
    fetching: u16,
    is_watching: bool,
}

/// The tag of the end of a waking.
const WOKEN: u64 = u64::MAX;

impl Queue {
    /// Makes queue 0 of the device that is served by `device` (`/dev/ublkcN`), with as many
    /// requests as the device was added with, and lets the driver send them.
    ///
    /// # Errors
    /// The kernel's, if it has no such queue.
    ///
    /// # Panics
    /// The depth is 0 or above [`MOST_DEPTH`].
    pub fn new(device: File, depth: u16) -> Result<Self, Errno> {
        assert!((1..=MOST_DEPTH).contains(&depth), "a depth of {depth}");
        let entries = u32::from(depth) + 1;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries.next_power_of_two());
        let ring = ring.map_err(no_ring)?;
        let woken = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let page = rustix::param::page_size();
        let mapped = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page);
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: without an address the kernel chooses one that nothing else uses.
        let base = unsafe { mmap(ptr::null_mut(), mapped, protection, flags, &device, 0) }?;
        let mut queue = Self {
            ring,
            device,
            descriptors: NonNull::new(base.cast()).expect("the kernel maps nothing at zero"),
            mapped,
            depth,
            woken,
            fetching: 0,
            is_watching: false,
        };
        for tag in 0..depth {
            queue.push(FETCH, tag, 0);
        }
        while !queue.ring.submission().is_empty() {
            enter(&queue.ring, 0);
        }
        // What the driver takes has no end yet: the device has no users.
        let refused = queue.ring.completion().next();
        match refused.map(|refused| refused.result()) {
            Some(error) => Err(Errno::from_raw_os_error(-error)),
            None => Ok(queue),
        }
    }

    /// What wakes the thread of this queue.
    pub fn waker(&self) -> Waker {
        Waker(self.woken.clone())
    }

    /// Gives these answers, each with its tag: bytes that were done, or minus an errno. Then waits
    /// until there is a request or the waker is used, and puts the requests with their tags into
    /// `begun`. False when the device has been stopped, and no request will come.
    pub fn turn(&mut self, answers: &[(u16, i32)], begun: &mut Vec<(u16, Descriptor)>) -> bool {
        for &(tag, result) in answers {
            self.push(COMMIT_AND_FETCH, tag, result);
        }
        if self.fetching == 0 {
            return false;
        }
        self.watch();
        enter(&self.ring, 1);
        let base = self.descriptors;
        for entry in self.ring.completion() {
            let Ok(tag) = u16::try_from(entry.user_data()) else {
                self.is_watching = false;
                let _ = rustix::io::read(&*self.woken, &mut [0; 8]);
                continue;
            };
            self.fetching -= 1;
            // Otherwise UBLK_IO_RES_ABORT: the device was stopped, and this tag is over.
            if entry.result() == 0 && tag < self.depth {
                // SAFETY: the mapping has `depth` records, and lives as long as the queue. The
                // driver has written this one before it ended the command, and leaves it alone
                // until the request is answered.
                let descriptor = unsafe { base.add(tag.into()).read_volatile() };
                begun.push((tag, descriptor));
            }
        }
        true
    }

    fn push(&mut self, operation: u32, tag: u16, result: i32) {
        let mut bytes: IoCommand = [0; 16];
        bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&result.to_ne_bytes());
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, operation).cmd(bytes);
        let entry = entry.build().user_data(tag.into());
        // SAFETY: the command names no memory of this process. The descriptor is ours.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has room for each tag");
        self.fetching += 1;
    }

    /// Lets the waker end a wait.
    fn watch(&mut self) {
        if std::mem::replace(&mut self.is_watching, true) {
            return;
        }
        let fd = types::Fd(self.woken.as_raw_fd());
        let readable = u32::try_from(libc::POLLIN).expect("a flag");
        let entry = opcode::PollAdd::new(fd, readable).build();
        // SAFETY: the entry names no memory. The descriptor is ours.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(WOKEN)) };
        assert!(pushed.is_ok(), "the ring has room for it");
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing of it was handed out.
        let unmapped = unsafe { munmap(self.descriptors.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "a mapping is unmapped once");
    }
}

/// Where the data of a request lies in `/dev/ublkcN` (`UBLK_F_USER_COPY`): what a write brings is
/// read there, and what a read is to give is written there.
pub fn data_offset(tag: u16) -> u64 {
    /// `UBLKSRV_IO_BUF_OFFSET`.
    const START: u64 = 0x8000_0000;
    /// `UBLK_TAG_OFF`.
    const TAG_SHIFT: u32 = 25;
    START + (u64::from(tag) << TAG_SHIFT)
}
