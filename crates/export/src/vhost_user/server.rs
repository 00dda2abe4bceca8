//! The server: accepts one machine after the other, and ends with nothing under way.

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use vhost::vhost_user::{Error as MessageError, Listener as Accepting};
use vhost_user_backend::{Error as DaemonError, ShutdownHandle, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use super::disk::Disk;
use super::frontend::{END, Frontend};
use super::work::Work;
use crate::ByteDev;
use crate::socket::{SocketError, UnixSocket};
use crate::todo::joined;

/// When a machine cannot be served, how long the next one waits.
const FULL: Duration = Duration::from_millis(100);

/// A socket on which a server will accept machines. Until then they wait.
pub struct Listener(UnixSocket);

impl Listener {
    /// Makes the socket.
    ///
    /// # Errors
    /// There is something at its path; the system's.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        UnixSocket::bind(path).map(Self)
    }

    /// The socket's path.
    pub fn address(&self) -> String {
        self.0.path().display().to_string()
    }
}

/// A server at work.
pub struct Server {
    shared: Arc<Shared>,
    serving: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    socket: UnixSocket,
    disk: Arc<Disk>,
    work: Arc<Work>,
    is_ending: Arc<AtomicBool>,
    /// The machine that is connected.
    connected: Mutex<Option<ShutdownHandle>>,
    accepted: AtomicU64,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VhostStats {
    /// A machine is connected.
    pub is_connected: bool,
    /// Machines since the start.
    pub accepted: u64,
    /// Requests since the start.
    pub requests: u64,
    /// Requests among them that were none.
    pub malformed: u64,
}

impl Server {
    /// Starts to accept machines. The disk's serial number is the socket's file name.
    ///
    /// # Errors
    /// Threads or descriptors cannot be had.
    pub fn start(listener: Listener, dev: Arc<ByteDev>) -> io::Result<Self> {
        let socket = listener.0;
        let path = socket.path();
        let name = path.file_name().unwrap_or_default();
        let disk = Arc::new(Disk::new(dev, name.as_encoded_bytes()));
        let work = Arc::new(Work::new(disk.clone()));
        let accepting = Accepting::from(socket.listener().try_clone()?);
        let shared = Arc::new(Shared {
            socket,
            disk,
            work: work.clone(),
            is_ending: Arc::default(),
            connected: Mutex::default(),
            accepted: AtomicU64::new(0),
        });
        let mut server = Self {
            shared: shared.clone(),
            serving: None,
            workers: work.start()?,
        };
        let thread = thread::Builder::new().name("vhost".to_owned());
        server.serving = Some(thread.spawn(move || shared.serve(accepting))?);
        Ok(server)
    }

    /// What it has done.
    pub fn stats(&self) -> VhostStats {
        let Shared {
            disk,
            connected,
            accepted,
            ..
        } = &*self.shared;
        VhostStats {
            is_connected: connected.lock().is_some(),
            accepted: accepted.load(Ordering::Relaxed),
            requests: disk.requests.load(Ordering::Relaxed),
            malformed: disk.malformed.load(Ordering::Relaxed),
        }
    }

    /// Accepts nobody and takes no request any more, and finishes those that were taken. The device
    /// is the caller's again, and is not flushed.
    pub fn stop(&mut self) {
        let shared = &self.shared;
        shared.is_ending.store(true, Ordering::Relaxed);
        shared.socket.stop();
        if let Some(connected) = &*shared.connected.lock() {
            connected.shutdown();
        }
        self.serving.take().into_iter().for_each(joined);
        // Nobody hands requests over any more.
        shared.work.end();
        self.workers.drain(..).for_each(joined);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn serve(&self, mut accepting: Accepting) {
        while !self.is_ending.load(Ordering::Relaxed) {
            match self.serve_one(&mut accepting) {
                Ok(()) => tracing::info!("the machine has left"),
                Err(_) if self.is_ending.load(Ordering::Relaxed) => {}
                Err(error) => {
                    tracing::warn!("a machine: {error}");
                    thread::sleep(FULL);
                }
            }
        }
    }

    /// Waits for a machine, serves it until it leaves, and finishes what it has asked for.
    fn serve_one(&self, accepting: &mut Accepting) -> Result<(), DaemonError> {
        self.disk.reset();
        let frontend = Arc::new(Frontend {
            disk: self.disk.clone(),
            work: self.work.clone(),
            memory: GuestMemoryAtomic::new(GuestMemoryMmap::new()),
            is_ending: self.is_ending.clone(),
            has_complained: AtomicBool::new(false),
        });
        let memory = frontend.memory.clone();
        // The thread that takes requests ends when the writing end is closed. (The library's own
        // event for that leaves a descriptor open after each connection.)
        let (ending, end) = io::pipe().map_err(DaemonError::StartDaemon)?;
        let mut daemon = VhostUserDaemon::new("vhost-messages".to_owned(), frontend, memory)?;
        for thread in daemon.get_epoll_handlers() {
            if let Err(error) = thread.register_listener(ending.as_raw_fd(), EventSet::IN, END) {
                // Its end would wait for a thread that nothing ends.
                mem::forget(daemon);
                return Err(DaemonError::StartDaemon(error));
            }
        }
        let done = self.talk(&mut daemon, accepting);
        drop(end);
        drop(daemon);
        self.work.settle_all();
        *self.connected.lock() = None;
        done
    }

    fn talk(
        &self,
        daemon: &mut VhostUserDaemon<Arc<Frontend>>,
        accepting: &mut Accepting,
    ) -> Result<(), DaemonError> {
        daemon.start(accepting)?;
        self.accepted.fetch_add(1, Ordering::Relaxed);
        *self.connected.lock() = daemon.shutdown_handle();
        if self.is_ending.load(Ordering::Relaxed) {
            daemon.request_shutdown();
        } else {
            tracing::info!("a machine has connected");
        }
        match daemon.wait() {
            Err(DaemonError::HandleRequest(
                MessageError::Disconnected | MessageError::PartialMessage,
            )) => Ok(()),
            ended => ended,
        }
    }
}
