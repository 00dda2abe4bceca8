//! The threads of a device: one exchanges requests and answers with the driver, which talks to that
//! one alone; the others carry the requests out.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rustix::io::Errno;
use stetfs_media::Block;
use stetfs_sys::ublk::{Control, Descriptor, Queue, Waker};

use super::device::{DEPTH, Device, UblkError, open_control};
use super::request::{ROOM, carry_out};
use crate::ByteDev;
use crate::todo::{Todo, joined};

/// Requests that run at the same time. Each thread has a MiB for their data.
const WORKERS: usize = 8;

/// The driver, with which a server will make a device.
pub struct Listener(Control);

impl Listener {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`UblkError`]: it is not there, or not for this user.
    pub fn bind() -> Result<Self, UblkError> {
        open_control().map(Self)
    }
}

/// A server at work.
pub struct Server {
    device: Device,
    path: PathBuf,
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkStats {
    /// Requests since the start.
    pub requests: u64,
}

/// What waits, and what is answered.
struct Work {
    dev: Arc<ByteDev>,
    todo: Todo<(u16, Descriptor)>,
    answers: Mutex<Vec<(u16, i32)>>,
    requests: AtomicU64,
}

impl Server {
    /// Makes the device and serves it.
    ///
    /// # Errors
    /// [`UblkError`]: the driver refuses, or there are no threads.
    pub fn start(listener: Listener, dev: Arc<ByteDev>) -> Result<Self, UblkError> {
        let device = Device::add(listener.0, &dev)?;
        let work = Arc::new(Work {
            dev,
            todo: Todo::new(DEPTH.into()),
            answers: Mutex::default(),
            requests: AtomicU64::new(0),
        });
        let path = device.path();
        let mut server = Self {
            device,
            path,
            work,
            threads: Vec::new(),
        };
        server.start_threads()?;
        server.device.show()?;
        Ok(server)
    }

    fn start_threads(&mut self) -> Result<(), UblkError> {
        let no_thread = |source| UblkError::Io {
            what: "a thread of the device".to_owned(),
            source,
        };
        // The driver lets it be opened once.
        let served = Arc::new(self.device.served()?);
        let queue = served.try_clone().map_err(no_thread)?;
        let (tell, told) = mpsc::channel();
        let work = self.work.clone();
        let exchange = move || {
            let made = Queue::new(queue, DEPTH).map(|queue| (queue.waker(), queue));
            match made {
                Ok((waker, queue)) => {
                    let _ = tell.send(Ok(waker));
                    work.exchange(queue);
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name("ublk".to_owned());
        self.threads
            .push(thread.spawn(exchange).map_err(no_thread)?);
        let refused = |source| UblkError::Refused {
            what: "the queue of requests",
            source,
        };
        let waker = told.recv().unwrap_or(Err(Errno::IO)).map_err(refused)?;
        for n in 0..WORKERS {
            match self.start_worker(served.clone(), waker.clone()) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if n == 0 => return Err(no_thread(error)),
                // Fewer do as well.
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn start_worker(&self, served: Arc<File>, waker: Waker) -> io::Result<JoinHandle<()>> {
        let work = self.work.clone();
        let thread = thread::Builder::new().name("ublk-worker".to_owned());
        thread.spawn(move || work.run(&served, &waker))
    }

    /// The device's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is mounted, or somebody has it for himself in another way.
    pub fn is_in_use(&self) -> bool {
        self.device.is_in_use()
    }

    /// What it has done.
    pub fn stats(&self) -> UblkStats {
        UblkStats {
            requests: self.work.requests.load(Ordering::Relaxed),
        }
    }

    /// Takes the device away, and finishes the requests that are under way. The device below is the
    /// caller's again, and is not flushed.
    pub fn stop(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if threads.is_empty() {
            return;
        }
        self.device.stop();
        threads.into_iter().for_each(joined);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Work {
    /// Exchanges requests and answers until the device is stopped.
    fn exchange(&self, mut queue: Queue) {
        let most = usize::from(DEPTH);
        let (mut answers, mut begun) = (Vec::with_capacity(most), Vec::with_capacity(most));
        while queue.turn(&answers, &mut begun) {
            begun.drain(..).for_each(|request| self.todo.push(request));
            answers.clear();
            std::mem::swap(&mut answers, &mut *self.answers.lock());
        }
        self.todo.end();
    }

    /// Carries requests out until there will be none.
    fn run(&self, served: &File, waker: &Waker) {
        let mut room = Block::zeroed(ROOM);
        while let Some((tag, request)) = self.todo.next() {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let answer = carry_out(&self.dev, served, tag, &request, room.bytes_mut());
            self.answers.lock().push((tag, answer));
            waker.wake();
        }
    }
}
