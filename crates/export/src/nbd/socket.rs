//! Addresses, and the sockets that listen and talk there.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::sockopt;

use super::error::NbdError;
use crate::socket::{SocketError, UnixSocket};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A host, by name or number, and a port.
    Tcp(String),
}

impl Address {
    /// Reads `HOST:PORT`, and anything else as the path of a unix socket.
    pub fn parse(word: &OsStr) -> Self {
        let is_port = |port: &str| port.parse::<u16>().is_ok();
        let host = word.to_str().filter(|text| {
            let parts = text.rsplit_once(':');
            let is_host = |(host, port): (&str, _)| !host.is_empty() && is_port(port);
            !text.contains('/') && parts.is_some_and(is_host)
        });
        host.map_or_else(
            || Self::Unix(word.into()),
            |host| Self::Tcp(host.to_owned()),
        )
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host) => host.fmt(f),
        }
    }
}

/// A socket that listens.
pub(super) enum Listening {
    Unix(UnixSocket),
    Tcp(TcpListener),
}

impl Listening {
    /// Takes the address.
    ///
    /// # Errors
    /// It is in use; other machines reach it, and that was not asked for; the system's.
    pub(super) fn at(address: &Address, anywhere: bool) -> Result<Self, NbdError> {
        let failed = |source| SocketError::Listen {
            address: address.to_string(),
            source,
        };
        match address {
            Address::Unix(path) => Ok(Self::Unix(UnixSocket::bind(path)?)),
            Address::Tcp(host) => {
                let places: Vec<_> = host.to_socket_addrs().map_err(failed)?.collect();
                let is_local = |place: &SocketAddr| place.ip().to_canonical().is_loopback();
                if !anywhere && !places.iter().all(is_local) {
                    let address = address.to_string();
                    return Err(NbdError::NotLocal { address });
                }
                let listener = TcpListener::bind(&places[..]).map_err(failed)?;
                Ok(Self::Tcp(listener))
            }
        }
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// The system's; always after [`stop`](Self::stop).
    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(socket) => Ok(Socket::Unix(socket.listener().accept()?.0)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                // So that a machine that has gone does not keep its place.
                sockopt::set_socket_keepalive(&stream, true)?;
                Ok(Socket::Tcp(stream))
            }
        }
    }

    /// Accepts nobody any more. A unix socket is gone then.
    pub(super) fn stop(&self) {
        match self {
            Self::Unix(socket) => socket.stop(),
            Self::Tcp(listener) => {
                let stopped = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
                if let Err(error) = stopped {
                    tracing::debug!("shutdown of a listening socket: {error}");
                }
            }
        }
    }

    /// The address as clients write it.
    pub(super) fn uri(&self) -> String {
        match self {
            Self::Unix(socket) => {
                let path = socket.path();
                let escaped = escape(path.as_os_str().as_encoded_bytes());
                format!("nbd+unix:///?socket={escaped}")
            }
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(place) => format!("nbd://{place}"),
                Err(_) => "nbd://".to_owned(),
            },
        }
    }
}

/// Bytes as the query of a URI has them (RFC 3986, section 2.1).
fn escape(bytes: &[u8]) -> String {
    let mut escaped = String::new();
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(*byte));
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

/// A connection.
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// How long a read and a write may wait for the client; `None`: for ever.
    pub(super) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)
            }
        }
    }

    /// Ends one direction, or both. Whoever waits for the client there is woken.
    pub(super) fn shut(&self, how: Shutdown) {
        // It may be at its end already.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl Read for &Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).read(bytes),
            Socket::Tcp(stream) => (&*stream).read(bytes),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).write(bytes),
            Socket::Tcp(stream) => (&*stream).write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).write_vectored(parts),
            Socket::Tcp(stream) => (&*stream).write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
