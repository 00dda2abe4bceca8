//! The server: accepts clients, a thread for each, and ends with nothing under way.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::error::NbdError;
use super::handshake::{Agreed, agree};
use super::protocol::is_gone;
use super::socket::{Address, Listening, Socket};
use super::transmission::{Connection, Export};
use crate::ByteDev;
use crate::todo::joined;

/// Connections at the same time. Each takes up to 36 MiB of memory.
const MOST_CONNECTIONS: usize = 32;
/// How long a client may be silent during the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests and their replies may take when the server ends, before clients are cut off.
const GRACE: Duration = Duration::from_secs(10);
/// When no more files can be opened, how long the next client waits.
const FULL: Duration = Duration::from_millis(100);

/// A socket on which a server will accept clients. Until then they wait.
pub struct Listener(Listening);

impl Listener {
    /// Takes the address. With `anywhere` it may be one that other machines reach: whoever connects
    /// there reads and writes the device.
    ///
    /// # Errors
    /// [`NbdError`]: it is in use, cannot be had, or is not of this machine alone.
    pub fn bind(address: &Address, anywhere: bool) -> Result<Self, NbdError> {
        Listening::at(address, anywhere).map(Self)
    }

    /// The address as clients write it: `nbd+unix:///?socket=PATH`, `nbd://HOST:PORT`.
    pub fn uri(&self) -> String {
        self.0.uri()
    }
}

/// A server at work.
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    listening: Listening,
    export: Export,
    open: Mutex<Open>,
    /// A connection has ended.
    ended: Condvar,
}

/// The connections.
#[derive(Default)]
struct Open {
    /// How many there were.
    count: u64,
    sockets: HashMap<u64, Arc<Socket>>,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdStats {
    /// Connections that are open.
    pub connections: usize,
    /// Connections since the start.
    pub accepted: u64,
    /// Requests since the start.
    pub requests: u64,
}

impl Server {
    /// Starts to accept clients.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(listener: Listener, dev: Arc<ByteDev>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            listening: listener.0,
            export: Export {
                dev,
                is_ending: AtomicBool::new(false),
                requests: AtomicU64::new(0),
            },
            open: Mutex::default(),
            ended: Condvar::new(),
        });
        let accepting = shared.clone();
        let acceptor = thread::Builder::new().name("nbd-accept".to_owned());
        let acceptor = acceptor.spawn(move || accepting.accept())?;
        Ok(Self {
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// What it has done.
    pub fn stats(&self) -> NbdStats {
        let open = self.shared.open.lock();
        NbdStats {
            connections: open.sockets.len(),
            accepted: open.count,
            requests: self.shared.export.requests.load(Ordering::Relaxed),
        }
    }

    /// Accepts nobody and takes no request any more, finishes those that were taken, and cuts off
    /// who does not read the replies. The device is the caller's again, and is not flushed.
    pub fn stop(&mut self) {
        let shared = &self.shared;
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        shared.export.is_ending.store(true, Ordering::Relaxed);
        shared.listening.stop();
        joined(acceptor);
        let mut open = shared.open.lock();
        open.sockets.values().for_each(|s| s.shut(Shutdown::Read));
        let is_open = |open: &mut Open| !open.sockets.is_empty();
        shared.ended.wait_while_for(&mut open, is_open, GRACE);
        open.sockets.values().for_each(|s| s.shut(Shutdown::Both));
        shared.ended.wait_while(&mut open, is_open);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>) {
        while !self.export.is_ending.load(Ordering::Relaxed) {
            match self.listening.accept() {
                Ok(socket) => self.welcome(socket),
                Err(_) if self.export.is_ending.load(Ordering::Relaxed) => {}
                Err(error) => {
                    tracing::warn!("a client was not accepted: {error}");
                    if error.kind() != ErrorKind::ConnectionAborted {
                        thread::sleep(FULL);
                    }
                }
            }
        }
    }

    /// Starts the thread of a connection.
    fn welcome(self: &Arc<Self>, socket: Socket) {
        let socket = Arc::new(socket);
        let number = {
            let mut open = self.open.lock();
            if open.sockets.len() >= MOST_CONNECTIONS {
                tracing::warn!("a client was sent away: {MOST_CONNECTIONS} are connected");
                return;
            }
            open.count += 1;
            let number = open.count;
            open.sockets.insert(number, socket.clone());
            number
        };
        let shared = self.clone();
        let thread = thread::Builder::new().name("nbd".to_owned());
        let started = thread.spawn(move || {
            match shared.talk(&socket) {
                Err(NbdError::Io(error)) if is_gone(&error) => {}
                Err(error) => tracing::warn!("NBD client {number}: {error}"),
                Ok(()) => tracing::info!("NBD client {number} has left"),
            }
            shared.forget(number);
        });
        if let Err(error) = started {
            tracing::warn!("no thread for a client: {error}");
            self.forget(number);
        }
    }

    fn talk(&self, socket: &Socket) -> Result<(), NbdError> {
        socket.set_patience(Some(HANDSHAKE))?;
        if agree(&mut &*socket, &mut &*socket, &self.export.dev)? == Agreed::Left {
            return Ok(());
        }
        socket.set_patience(None)?;
        Connection::new(&self.export, socket, socket).serve(&|| socket.shut(Shutdown::Both))
    }

    fn forget(&self, number: u64) {
        let socket = self.open.lock().sockets.remove(&number);
        drop(socket);
        self.ended.notify_all();
    }
}
