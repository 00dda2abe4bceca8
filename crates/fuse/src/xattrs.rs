//! Requests about extended attributes, and the two reserved names of [`crate::control`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, INodeNo, Request};
use stetfs::{Caller, SetXattr, Shutdown};

use crate::attr::inode;
use crate::caller::{caller, caller_with_groups};
use crate::control::{self, Command};
use crate::errno::errno;
use crate::fs::{Answer, StetFs};

/// Setting it may clear set-group-ID, which depends on the caller's groups.
const ACL_ACCESS: &str = "system.posix_acl_access";

impl StetFs {
    pub(crate) fn get_attribute(&self, c: &Caller, ino: INodeNo, name: &OsStr) -> Answer<Vec<u8>> {
        if name == control::STATS {
            return self.stats_json().map(String::into_bytes);
        }
        self.fs
            .getxattr(c, inode(ino), name.as_bytes())
            .map_err(|e| errno(&e))
    }

    pub(crate) fn set_attribute(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Answer<()> {
        if name == control::CONTROL {
            return self.obey(req, value);
        }
        let how = match flags & (libc::XATTR_CREATE | libc::XATTR_REPLACE) {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let c = if name == ACL_ACCESS {
            caller_with_groups(req)
        } else {
            caller(req)
        };
        self.fs
            .setxattr(&c, inode(ino), name.as_bytes(), value, how)
            .map_err(|e| errno(&e))
    }

    /// The names, each ended by a NUL.
    pub(crate) fn list_attributes(&self, c: &Caller, ino: INodeNo) -> Answer<Vec<u8>> {
        self.fs.listxattr(c, inode(ino)).map_err(|e| errno(&e))
    }

    pub(crate) fn remove_attribute(&self, c: &Caller, ino: INodeNo, name: &OsStr) -> Answer<()> {
        self.fs
            .removexattr(c, inode(ino), name.as_bytes())
            .map_err(|e| errno(&e))
    }

    /// The caller as an administrator of the volume: root, and whoever runs the server.
    pub(crate) fn administrator(&self, req: &Request) -> Answer<Caller> {
        if req.uid() != 0 && req.uid() != self.owner {
            return Err(Errno::EPERM);
        }
        Ok(Caller {
            privileged: true,
            ..caller(req)
        })
    }

    fn obey(&self, req: &Request, words: &[u8]) -> Answer<()> {
        let c = self.administrator(req)?;
        match Command::decode(words).ok_or(Errno::EINVAL)? {
            Command::Commit => self.fs.sync().map_err(|e| errno(&e)),
            Command::Drain => self.fs.drain_some().map(drop).map_err(|e| errno(&e)),
            Command::Shutdown(mode) => self.shut_down(&c, mode, req.pid()),
        }
    }

    /// Stops the volume on somebody's request.
    pub(crate) fn shut_down(&self, c: &Caller, mode: Shutdown, pid: u32) -> Answer<()> {
        tracing::warn!("shut down on request of process {pid} ({mode:?})");
        self.fs.shutdown(c, mode).map_err(|e| errno(&e))
    }
}
