//! The open `/dev/fuse`: one read is one request, one write is one answer or notification.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};

use rustix::io::Errno;
use stetfs_format::width::{must_fit_u32, u32_as_usize};

use super::abi::{self, OutHeader};
use super::answer::{Answer, refusal};
use super::gate::{Gate, Pass};

/// The path of the device.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// What came from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// Nothing yet.
    Nothing,
    /// The mount is gone.
    End,
}

/// One end of a connection to the kernel.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Opens another end of the same connection. A request that it has read must be answered
    /// through it.
    pub(crate) fn another(&self) -> io::Result<Self> {
        let new = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        stetfs_sys::fuse_ioctl::clone_session(&new, &self.0)?;
        Ok(Self(new.into()))
    }

    /// Waits for a request.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        match rustix::io::read(&self.0, buffer) {
            Ok(len) => Ok(Received::Request(len)),
            // ENOENT: the request was interrupted before we read it.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => Ok(Received::Nothing),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::End),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends an answer. ENOENT means that nobody waits for it any more; this is no error.
    fn send(&self, bytes: &[u8]) {
        match rustix::io::write(&self.0, bytes) {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(e) => tracing::warn!("an answer to the kernel: {}", io::Error::from(e)),
        }
    }

    /// Answers the request with the number `unique`.
    pub(crate) fn answer(&self, unique: u64, result: Result<Answer<'_>, Errno>) {
        match result {
            Ok(answer) => self.send(answer.finish(unique)),
            Err(errno) => self.send(bytemuck::bytes_of(&refusal(unique, errno))),
        }
    }

    /// Answers a request that has nothing to tell.
    pub(crate) fn succeed(&self, unique: u64) {
        let mut room = [0; super::answer::HEADER];
        self.answer(unique, Ok(Answer::new(&mut room)));
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The right to answer one request later, from any thread.
pub(crate) struct Ticket {
    to: To,
    /// Is called with the answer before it is sent.
    note: Option<Note>,
}

/// What an answer is noted by.
pub(crate) type Note = Box<dyn FnOnce(Result<&[u8], Errno>) + Send>;

/// Who sends the answer.
#[derive(Debug)]
enum To {
    /// The holder of the ticket, for the request of this number. Until then it is under way.
    Kernel(Arc<Channel>, u64, Pass),
    /// A worker that waits for it.
    Worker(mpsc::Sender<Result<Vec<u8>, Errno>>),
}

impl Ticket {
    pub(crate) fn new(channel: &Arc<Channel>, unique: u64, pass: Pass) -> Self {
        Self {
            to: To::Kernel(channel.clone(), unique, pass),
            note: None,
        }
    }

    /// Has the answer noted before it is sent.
    pub(crate) fn noting(self, note: Note) -> Self {
        Self {
            note: Some(note),
            ..self
        }
    }

    /// Returns the channel that the answer must take, and the number of the request. The request
    /// is not under way any more. `None`: a worker waits for the answer.
    pub(crate) fn into_question(self) -> Option<(Arc<Channel>, u64)> {
        match self.to {
            To::Kernel(channel, unique, _) => Some((channel, unique)),
            To::Worker(_) => None,
        }
    }

    /// Makes a ticket for a worker that waits.
    pub(crate) fn of_worker(worker: mpsc::Sender<Result<Vec<u8>, Errno>>) -> Self {
        Self {
            to: To::Worker(worker),
            note: None,
        }
    }

    /// Answers with a record.
    pub(crate) fn answer<T: bytemuck::Pod>(self, result: Result<T, Errno>) {
        self.answer_bytes(result.map(|record| bytemuck::bytes_of(&record).to_vec()));
    }

    /// Answers with records as bytes.
    pub(crate) fn answer_bytes(self, result: Result<Vec<u8>, Errno>) {
        if let Some(note) = self.note {
            note(result.as_deref().map_err(|errno| *errno));
        }
        match self.to {
            To::Kernel(channel, unique, _pass) => {
                let len = result.as_ref().map_or(0, Vec::len);
                let mut buffer = vec![0; super::answer::HEADER + len];
                let mut answer = Answer::new(&mut buffer);
                let result = result.and_then(|bytes| answer.bytes(&bytes));
                channel.answer(unique, result.map(|()| answer));
            }
            // If the worker does not wait any more, the mount is gone.
            To::Worker(worker) => {
                let _ = worker.send(result);
            }
        }
    }
}

/// Sends notifications to the kernel. While the gate is closed they wait.
#[derive(Debug, Clone)]
pub(crate) struct Notifier {
    channel: Arc<Channel>,
    gate: Arc<Gate>,
}

impl Notifier {
    pub(crate) fn new(channel: &Arc<Channel>, gate: &Arc<Gate>) -> Self {
        Self {
            channel: channel.clone(),
            gate: gate.clone(),
        }
    }

    /// Returns a pass of the gate, for several notifications that belong together.
    pub(crate) fn pass(&self) -> Pass {
        self.gate.pass()
    }

    fn send(&self, message: &[u8]) -> Result<usize, Errno> {
        let _pass = self.gate.pass();
        rustix::io::write(&*self.channel, message)
    }

    /// Tells that the attributes of an inode have changed behind the kernel's back: the kernel asks
    /// again before it uses them.
    pub(crate) fn attributes_changed(&self, node: u64) {
        self.invalidate(node, -1, 0);
    }

    /// Tells that contents from `offset` on have changed: `len` bytes, or all if it is 0. The
    /// kernel first writes dirty pages there, so this waits for workers: no worker may call it.
    pub(crate) fn content_changed(&self, node: u64, offset: i64, len: i64) {
        self.invalidate(node, offset, len);
    }

    /// Tells that the kernel's knowledge of a name in a directory is wrong, also that there is
    /// none: the kernel looks it up anew before it uses it. (Linux before 6.2 forgets the file at
    /// once, which takes ten times as long.) This waits for those who work in the directory, and so
    /// for workers: no worker may call it.
    pub(crate) fn name_changed(&self, dir: u64, name: &[u8]) {
        let what = abi::NotifyInvalEntryOut {
            parent: dir,
            namelen: must_fit_u32(name.len()),
            flags: abi::NOTIFY_EXPIRE_ONLY,
        };
        let header = OutHeader {
            len: must_fit_u32(size_of::<OutHeader>() + size_of_val(&what) + name.len() + 1),
            error: abi::NOTIFY_INVAL_ENTRY,
            unique: 0,
        };
        let message = [
            bytemuck::bytes_of(&header),
            bytemuck::bytes_of(&what),
            name,
            b"\0",
        ];
        match self.send(&message.concat()) {
            // ENOENT: the kernel does not know the name, so it knows nothing wrong of it.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(e) => tracing::debug!("telling the kernel of a name: {}", io::Error::from(e)),
        }
    }

    /// Makes the kernel forget these inodes, unless somebody uses them. So it asks for all of their
    /// attributes again, also for those that it keeps itself. Does nothing before Linux 6.18.
    pub(crate) fn forget(&self, nodes: &[u64]) {
        let what = abi::NotifyPruneOut {
            count: must_fit_u32(nodes.len()),
            ..abi::NotifyPruneOut::default()
        };
        let what = [bytemuck::bytes_of(&what), bytemuck::cast_slice(nodes)].concat();
        let header = OutHeader {
            len: must_fit_u32(size_of::<OutHeader>() + what.len()),
            error: abi::NOTIFY_PRUNE,
            unique: 0,
        };
        let message = [bytemuck::bytes_of(&header), &what].concat();
        if let Err(e) = self.send(&message) {
            tracing::debug!("asking the kernel to forget: {}", io::Error::from(e));
        }
    }

    /// Has the kernel send once more what was not answered.
    pub(crate) fn send_again(&self) -> io::Result<()> {
        let header = OutHeader {
            len: must_fit_u32(size_of::<OutHeader>()),
            error: abi::NOTIFY_RESEND,
            unique: 0,
        };
        self.send(bytemuck::bytes_of(&header))?;
        Ok(())
    }

    fn invalidate(&self, ino: u64, off: i64, len: i64) {
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        struct Message {
            header: OutHeader,
            what: abi::NotifyInvalInodeOut,
        }
        let message = Message {
            header: OutHeader {
                len: must_fit_u32(size_of::<Message>()),
                error: abi::NOTIFY_INVAL_INODE,
                unique: 0,
            },
            what: abi::NotifyInvalInodeOut { ino, off, len },
        };
        match self.send(bytemuck::bytes_of(&message)) {
            // ENOENT: the kernel does not know the inode, so it knows nothing wrong of it.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(e) => tracing::debug!("telling the kernel of inode {ino}: {}", io::Error::from(e)),
        }
    }
}

/// Returns the bytes of the pages that the kernel may use for one request (`accept` in `serve.rs`).
/// Reads may fill them.
pub(crate) fn largest_data(max_request: u32) -> usize {
    let page = rustix::param::page_size();
    (u32_as_usize(max_request).div_ceil(page) + 1) * page
}
