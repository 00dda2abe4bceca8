//! Serving a connection: INIT, then workers. Each takes a request, has it answered, and takes the
//! next, from the device or by io_uring.

use std::cell::OnceCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stetfs_format::width::{high32, low32};

use super::abi::{self, Capabilities, InitIn, InitOut};
use super::answer::{Answer, HEADER};
use super::channel::{Channel, Notifier, Received, Ticket, largest_data};
use super::gate::{Gate, Kept};
use super::request::{BAD, BadRequest, Request, What};
use super::ring::{self, Done, Entry};

/// What the kernel offers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// How far it would read ahead, in bytes.
    pub readahead: u32,
}

/// What the server asks of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// The capabilities to use. Those that the kernel does not offer are left out.
    pub capabilities: Capabilities,
    /// How far to read ahead, in bytes.
    pub readahead: u32,
    /// The largest write, and the largest read, in bytes.
    pub max_request: u32,
    /// The largest number of requests under way in the background: readahead and write-back.
    pub max_background: u16,
    /// Seconds after which the kernel aborts the connection because of an unanswered request; 0:
    /// never.
    pub request_timeout: u16,
    /// The step of timestamps in nanoseconds.
    pub time_step_ns: u32,
}

/// Whether a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answered {
    /// The [`Answer`] is complete.
    Now,
    /// The holder of the [`Ticket`] answers.
    Later,
}

/// Answers the kernel's requests. Several workers call it at once.
pub(crate) trait Server: Send + Sync + 'static {
    /// Chooses from what the kernel offers.
    fn agree(&self, offer: &Offer) -> Terms;

    /// Answers a request, or takes a ticket and answers later.
    ///
    /// # Errors
    /// The errno for the caller.
    fn answer(
        self: &Arc<Self>,
        request: &Request<'_>,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Result<Answered, Errno>;

    /// Ends the server: the mount is gone, and umount(2) waits for this to return. Only for mounts
    /// on a block device.
    fn destroy(&self);
}

/// A connection whose INIT is done.
#[derive(Debug)]
pub(crate) struct Session<S> {
    server: Arc<S>,
    link: Link,
    threads: usize,
}

/// The connection itself: what can be handed over to another program.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    /// The end of the device that each worker reads; several may have the same.
    pub(crate) channels: Vec<Arc<Channel>>,
    pub(crate) agreed: Agreed,
    pub(crate) gate: Arc<Gate>,
}

/// The outcome of INIT.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Agreed {
    pub(crate) minor: u32,
    pub(crate) max_request: u32,
    pub(crate) over_io_uring: bool,
    /// The kernel can send requests once more.
    pub(crate) can_resend: bool,
}

/// Bytes for the part before the data of a write; more than any other request has.
const OVERHEAD: usize = 4096;

/// A worker's buffer for requests and answers. It is made of words, so that records are aligned.
struct Buffer(Vec<u64>);

impl Buffer {
    /// Makes a buffer for requests and answers of up to `max_request` bytes of data. Memory that is
    /// never used is never taken from the system.
    fn new(max_request: u32) -> Self {
        let len = abi::MIN_READ_BUFFER.max(largest_data(max_request)) + OVERHEAD;
        Self(vec![0; len.div_ceil(8)])
    }

    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

impl<S: Server> Session<S> {
    /// Agrees with the kernel over an open `/dev/fuse` that was just mounted. There will be
    /// `threads` workers, each with its own clone of the descriptor if `clone`. Over io_uring there
    /// will be as many or a few more.
    ///
    /// # Errors
    /// The kernel's protocol is too old, or the device fails.
    pub(crate) fn agree(
        server: Arc<S>,
        fd: OwnedFd,
        threads: usize,
        clone: bool,
    ) -> io::Result<Self> {
        let channel = Channel::new(fd);
        let agreed = handshake(&*server, &channel)?;
        let mut channels = vec![Arc::new(channel)];
        // Over io_uring little comes by the device.
        let readers = if agreed.over_io_uring { 1 } else { threads };
        while channels.len() < readers {
            let next = if clone {
                Arc::new(channels[0].another()?)
            } else {
                channels[0].clone()
            };
            channels.push(next);
        }
        let link = Link {
            channels,
            agreed,
            gate: Arc::default(),
        };
        Ok(Self::resume(server, link, threads))
    }

    /// Goes on with a connection that another program has begun. What the gate keeps is answered
    /// too.
    pub(crate) fn resume(server: Arc<S>, link: Link, threads: usize) -> Self {
        Self {
            server,
            link,
            threads,
        }
    }

    /// Returns the minor version of the protocol that the kernel speaks.
    pub(crate) fn minor(&self) -> u32 {
        self.link.agreed.minor
    }

    /// Returns the connection.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the means to send notifications to the kernel.
    pub(crate) fn notifier(&self) -> Notifier {
        Notifier::new(&self.link.channels[0], &self.link.gate)
    }

    /// Serves until the mount is gone.
    ///
    /// # Errors
    /// The device failed, or a thread could not be started. Then abort the connection: workers may
    /// still wait for the kernel, and callers for them.
    pub(crate) fn run(self) -> io::Result<()> {
        let (tell, ends) = mpsc::channel();
        let Link {
            channels,
            agreed,
            gate,
        } = self.link;
        let queues = if agreed.over_io_uring {
            ring::queues()?
        } else {
            0
        };
        let workers = Arc::new(Workers {
            server: self.server,
            channels: channels.clone(),
            max_request: agreed.max_request,
            gate,
            tell,
            started: AtomicUsize::new(0),
            queues: (0..queues).map(|_| Queue::default()).collect(),
        });
        for index in 0..channels.len() {
            workers.start(move |workers| workers.read(index))?;
        }
        for queue in 0..queues {
            for _ in 0..ring::workers(self.threads, queues) {
                workers.start(move |workers| workers.wait(queue))?;
            }
        }
        // A worker may start another before it ends.
        let mut ended = 0;
        while ended < workers.started.load(Ordering::SeqCst) {
            ends.recv().map_err(io::Error::other)??;
            ended += 1;
        }
        Ok(())
    }
}

/// The workers that serve a connection.
struct Workers<S> {
    server: Arc<S>,
    /// The ends of the device that workers read.
    channels: Vec<Arc<Channel>>,
    max_request: u32,
    gate: Arc<Gate>,
    /// Is told when a worker ends.
    tell: mpsc::Sender<io::Result<()>>,
    started: AtomicUsize,
    queues: Vec<Queue>,
}

/// The workers of a queue of io_uring. Workers of other queues cannot take its requests.
#[derive(Default)]
struct Queue {
    /// Workers that wait for another thread's answer.
    waiting: AtomicUsize,
    /// Workers that were started for them.
    spare: AtomicUsize,
}

impl<S: Server> Workers<S> {
    fn start(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let n = self.started.fetch_add(1, Ordering::SeqCst);
        let workers = self.clone();
        let started = thread::Builder::new()
            .name(format!("worker-{n}"))
            .spawn(move || {
                let end = End(&workers.tell);
                let result = work(&workers);
                end.with(result);
            });
        started.map(drop).inspect_err(|_| {
            self.started.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Serves requests that come by the device's end of this index.
    fn read(&self, index: usize) -> io::Result<()> {
        let mut buffer = Buffer::new(self.max_request);
        let seat = self.gate.sit();
        loop {
            seat.is_free();
            if let Some(kept) = self.gate.next_kept() {
                seat.is_busy();
                let len = kept.bytes.len();
                buffer.bytes()[..len].copy_from_slice(&kept.bytes);
                self.deal(kept.channel, buffer.bytes(), len);
                continue;
            }
            let len = match self.channels[index].receive(buffer.bytes())? {
                Received::Request(len) => len,
                Received::Nothing => continue,
                Received::End => return Ok(()),
            };
            seat.is_busy();
            self.deal(index, buffer.bytes(), len);
        }
    }

    /// Answers the request of `len` bytes in a buffer through the end of the device of this index,
    /// unless the gate keeps it.
    fn deal(&self, index: usize, buffer: &mut [u8], len: usize) {
        let channel = &self.channels[index];
        let (received, room) = split(buffer, len);
        match Request::decode(received) {
            Ok(request) if self.gate.admits(&request) => {
                let ticket = || Ticket::new(channel, request.header.unique, self.gate.more());
                respond(&self.server, channel, &request, &ticket, room);
            }
            Ok(_) => self.gate.keep(Kept {
                channel: index,
                bytes: received.to_vec(),
            }),
            Err(e) => {
                tracing::error!("from the kernel: {e}");
                if let BadRequest::Short { unique, .. } = e {
                    channel.answer(unique, Err(BAD));
                }
            }
        }
    }

    /// Serves requests that come by a queue of io_uring.
    fn wait(self: &Arc<Self>, queue: u16) -> io::Result<()> {
        let named = |e: Errno| {
            let e = io::Error::from(e);
            io::Error::new(e.kind(), format!("FUSE over io_uring, queue {queue}: {e}"))
        };
        ring::run_on(queue);
        let mut entry = Entry::new(&self.channels[0], queue, self.max_request).map_err(named)?;
        while entry.answer_and_wait().map_err(named)? {
            let mut is_waiting = false;
            entry.deal(|request, room| {
                let mut answer = Answer::new(room);
                let later = OnceCell::new();
                let ticket = || {
                    let (send, receive) = mpsc::channel();
                    let _ = later.set(receive);
                    Ticket::of_worker(send)
                };
                match ask(&self.server, request, &ticket, &mut answer) {
                    Ok(Answered::Now) => Done::Answered(answer.len()),
                    Err(errno) => Done::Refused(errno),
                    Ok(Answered::Later) => {
                        is_waiting = true;
                        self.replace_me(queue);
                        later
                            .into_inner()
                            .map_or(Done::Refused(Errno::IO), Done::Later)
                    }
                }
            });
            if is_waiting {
                let of = &self.queues[usize::from(queue)];
                of.waiting.fetch_sub(1, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Starts a spare worker if needed, since this one waits for a thread that may need workers. If
    /// all others of its queue start to wait at the same moment, requests already in the queue wait
    /// for the companion's next question.
    fn replace_me(self: &Arc<Self>, queue: u16) {
        let of = &self.queues[usize::from(queue)];
        let waiting = of.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        if of.spare.fetch_max(waiting, Ordering::SeqCst) < waiting
            && let Err(e) = self.start(move |workers| workers.wait(queue))
        {
            tracing::error!("another worker: {e}");
        }
    }
}

/// Reports a worker's end, also if it is a panic.
struct End<'a>(&'a mpsc::Sender<io::Result<()>>);

impl End<'_> {
    fn with(self, result: io::Result<()>) {
        // Nobody listens any more after an error.
        let _ = self.0.send(result);
        std::mem::forget(self);
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(Err(io::Error::other("a worker panicked")));
    }
}

/// Splits a buffer into the request and room for the answer. One buffer is enough for both: a long
/// request is a write, whose answer is short, and a long answer goes to a short request.
fn split(buffer: &mut [u8], received: usize) -> (&[u8], &mut [u8]) {
    let (request, room) = buffer.split_at_mut(received.next_multiple_of(8));
    (&request[..received], room)
}

fn respond<S: Server>(
    server: &Arc<S>,
    channel: &Arc<Channel>,
    request: &Request<'_>,
    ticket: &dyn Fn() -> Ticket,
    room: &mut [u8],
) {
    let unique = request.header.unique;
    let mut answer = Answer::new(room);
    let done = ask(server, request, ticket, &mut answer);
    if !request.is_answered() {
        return;
    }
    match done {
        Ok(Answered::Now) => channel.answer(unique, Ok(answer)),
        Ok(Answered::Later) => {}
        Err(errno) => channel.answer(unique, Err(errno)),
    }
}

/// Has the server answer a request.
fn ask<S: Server>(
    server: &Arc<S>,
    request: &Request<'_>,
    ticket: &dyn Fn() -> Ticket,
    answer: &mut Answer<'_>,
) -> Result<Answered, Errno> {
    match request.what {
        What::Destroy => {
            server.destroy();
            Ok(Answered::Now)
        }
        // The kernel then stops telling us of signals. They would end nothing here.
        What::Interrupt | What::Unknown => Err(Errno::NOSYS),
        What::Init { .. } => Err(Errno::IO),
        _ => server.answer(request, ticket, answer),
    }
}

/// Answers INIT.
fn handshake<S: Server>(server: &S, channel: &Channel) -> io::Result<Agreed> {
    let mut buffer = Buffer::new(0);
    loop {
        let len = match channel.receive(buffer.bytes())? {
            Received::Request(len) => len,
            Received::Nothing => continue,
            Received::End => {
                let gone = "unmounted at once";
                return Err(io::Error::new(io::ErrorKind::NotConnected, gone));
            }
        };
        let (received, room) = split(buffer.bytes(), len);
        let request = Request::decode(received).map_err(io::Error::other)?;
        let unique = request.header.unique;
        let What::Init(from) = request.what else {
            channel.answer(unique, Err(BAD));
            return Err(io::Error::other("the kernel did not begin with INIT"));
        };
        if from.major < abi::MAJOR || (from.major == abi::MAJOR && from.minor < abi::MINOR_MIN) {
            channel.answer(unique, Err(Errno::PROTO));
            return Err(io::Error::other(format!(
                "this kernel speaks version {}.{} of the FUSE protocol; {}.{} is needed",
                from.major,
                from.minor,
                abi::MAJOR,
                abi::MINOR_MIN
            )));
        }
        let mut answer = Answer::new(room);
        let (out, agreed) = if from.major > abi::MAJOR {
            // The kernel starts again with our version.
            (version_only(), None)
        } else {
            let offer = offer(&from);
            let terms = server.agree(&offer);
            let out = accept(&from, &terms);
            let over_io_uring = chosen(&out).contains(Capabilities::OVER_IO_URING);
            let agreed = Agreed {
                minor: from.minor,
                max_request: terms.max_request,
                over_io_uring,
                can_resend: offer.capabilities.contains(Capabilities::HAS_RESEND),
            };
            (out, Some(agreed))
        };
        answer.record(&out)?;
        channel.answer(unique, Ok(answer));
        if let Some(agreed) = agreed {
            return Ok(agreed);
        }
    }
}

fn offer(from: &InitIn) -> Offer {
    let mut bits = u64::from(from.flags);
    if bits & Capabilities::INIT_EXT.bits() != 0 {
        bits |= u64::from(from.flags2) << 32;
    }
    Offer {
        capabilities: Capabilities::from_bits_truncate(bits),
        readahead: from.max_readahead,
    }
}

/// Returns the capabilities that an answer to INIT chooses.
fn chosen(out: &InitOut) -> Capabilities {
    Capabilities::from_bits_truncate(u64::from(out.flags) | u64::from(out.flags2) << 32)
}

fn version_only() -> InitOut {
    InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        ..InitOut::default()
    }
}

fn accept(from: &InitIn, terms: &Terms) -> InitOut {
    let offered = offer(from).capabilities;
    let both = Capabilities::INIT_EXT | Capabilities::MAX_PAGES;
    let missing = terms.capabilities.difference(offered);
    if !missing.is_empty() {
        tracing::info!("this kernel's FUSE lacks {missing:?}");
    }
    let chosen = (terms.capabilities | both).intersection(offered).bits();
    // One page more than the bytes fill: memory that begins inside of a page needs it.
    let pages = largest_data(terms.max_request) / rustix::param::page_size();
    InitOut {
        max_readahead: terms.readahead.min(from.max_readahead),
        flags: low32(chosen),
        flags2: high32(chosen),
        max_background: terms.max_background,
        // Three quarters, as in libfuse.
        congestion_threshold: terms.max_background / 4 * 3,
        max_write: terms.max_request,
        time_gran: terms.time_step_ns,
        request_timeout: terms.request_timeout,
        // The kernel allows fewer than a u16 can count.
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        ..version_only()
    }
}

const _: () = assert!(HEADER + 2 * 4096 <= abi::MIN_READ_BUFFER + OVERHEAD);

#[cfg(test)]
mod tests {
    use super::*;

    fn init(flags: u32, flags2: u32) -> InitIn {
        InitIn {
            major: 7,
            minor: 45,
            max_readahead: 131_072,
            flags,
            flags2,
            unused: [0; 11],
        }
    }

    #[test]
    fn only_what_is_offered_is_taken() {
        let terms = Terms {
            capabilities: Capabilities::WRITEBACK_CACHE | Capabilities::DIRECT_IO_ALLOW_MMAP,
            readahead: 1 << 20,
            max_request: 1 << 20,
            max_background: 64,
            request_timeout: 0,
            time_step_ns: 1,
        };
        let out = accept(&init(u32::MAX, u32::MAX), &terms);
        assert_eq!(out.flags, 1 << 16 | 1 << 22 | 1 << 30);
        assert_eq!((out.flags2, out.max_readahead), (1 << 4, 131_072));
        // Without INIT_EXT the second word means nothing.
        let out = accept(&init(1 << 16, u32::MAX), &terms);
        assert_eq!((out.flags, out.flags2), (1 << 16, 0));
    }
}
