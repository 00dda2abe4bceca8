//! Unix sockets on which servers listen. One that a killed server has left is taken over; one that
//! somebody serves is not; a server's own is removed at its end.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The socket cannot be made.
    #[error("{address}: {source}")]
    Listen {
        /// Where the server was to listen.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Another server has the socket.
    #[error("{address}: another server listens there")]
    Served {
        /// The socket.
        address: String,
    },
    /// There is a file where the socket was to be.
    #[error("{address}: a file exists there")]
    Exists {
        /// The file.
        address: String,
    },
}

/// A unix socket that listens.
pub(crate) struct UnixSocket {
    listener: UnixListener,
    /// Where it is, as long as it is there.
    path: Mutex<Option<PathBuf>>,
}

impl UnixSocket {
    /// Makes the socket.
    ///
    /// # Errors
    /// There is something at its path; the system's.
    pub(crate) fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Listen {
            address: path.display().to_string(),
            source,
        };
        let path = std::path::absolute(path).map_err(failed)?;
        make_room(&path)?;
        let listener = UnixListener::bind(&path).map_err(failed)?;
        Ok(Self {
            listener,
            path: Mutex::new(Some(path)),
        })
    }

    /// What accepts clients.
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it is; empty when it is gone.
    pub(crate) fn path(&self) -> PathBuf {
        self.path.lock().clone().unwrap_or_default()
    }

    /// Accepts nobody any more, and removes the socket.
    pub(crate) fn stop(&self) {
        let stopped = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Err(error) = stopped {
            tracing::debug!("shutdown of a listening socket: {error}");
        }
        self.remove();
    }

    fn remove(&self) {
        if let Some(path) = self.path.lock().take() {
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Looks whether a unix socket can be made here.
fn make_room(path: &Path) -> Result<(), SocketError> {
    let address = || path.display().to_string();
    let Ok(found) = path.symlink_metadata() else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::Exists { address: address() });
    }
    if UnixStream::connect(path).is_ok() {
        return Err(SocketError::Served { address: address() });
    }
    fs::remove_file(path).map_err(|source| SocketError::Listen {
        address: address(),
        source,
    })
}
