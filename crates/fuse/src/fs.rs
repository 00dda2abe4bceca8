//! The server: each request of the kernel becomes one operation of the file system behind it
//! ([`Backend`]).
//!
//! This file lists the requests and how each is answered. What they do is in `names.rs`,
//! `files.rs`, `xattrs.rs` and `ioctl.rs`. Workers call in parallel. Nothing is locked here: the
//! file system locks what it must.
//!
//! What the kernel is told at the start (`agree`) and with each answer decides most of the speed:
//! - it may keep names and attributes for ever, also that a name does not exist: only the kernel
//!   changes the volume;
//! - FLUSH and OPENDIR are answered ENOSYS once and never come again: there is nothing to do for
//!   them;
//! - without `HANDLE_KILLPRIV_V2`, a GETXATTR for `security.capability` would precede every write;
//! - the writeback cache makes small writes cheap; the kernel then owns size and times of the files
//!   that it has written;
//! - `POSIX_ACL` lets the kernel check ACLs from its own cache; `DONT_MASK` leaves the umask to us,
//!   because a default ACL overrides it.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use stetfs_format::InodeNo;
use stetfs_format::width::{must_fit, u32_as_usize};

use crate::attr::{self, decode_rdev, inode, no_entry};
use crate::backend::Backend;
use crate::control::Stop;
use crate::errno::{Outcome, errno};
use crate::options::{Allow, Transport};
use crate::server::FsServer;
use crate::tx::groups::{self, Ask};
use crate::tx::layer;
use crate::wire::abi::{self, Capabilities, InHeader, Opcode, WriteKind};
use crate::wire::{Answer, Answered, Offer, Request, Server, Terms, Ticket, What, ring};

/// Requests that the kernel may have under way in the background: readahead and write-back.
const MAX_BACKGROUND: u16 = 64;

/// The capabilities that we always ask for. We do without those that a kernel lacks.
const CAPABILITIES: Capabilities = Capabilities::ASYNC_READ
    .union(Capabilities::ATOMIC_O_TRUNC)
    .union(Capabilities::EXPORT_SUPPORT)
    .union(Capabilities::BIG_WRITES)
    .union(Capabilities::DONT_MASK)
    .union(Capabilities::HAS_IOCTL_DIR)
    .union(Capabilities::DO_READDIRPLUS)
    .union(Capabilities::ASYNC_DIO)
    .union(Capabilities::NO_OPENDIR_SUPPORT)
    .union(Capabilities::PARALLEL_DIROPS)
    .union(Capabilities::HANDLE_KILLPRIV_V2)
    .union(Capabilities::CACHE_SYMLINKS)
    .union(Capabilities::DIRECT_IO_ALLOW_MMAP);

impl<B: Backend> FsServer<B> {
    /// Returns whether this caller may come in. With `allow_root` the kernel lets everybody in, so
    /// we check.
    fn admits(&self, request: &Request<'_>) -> bool {
        let uid = request.header.uid;
        self.options.allow != Allow::Root
            || uid == 0
            || uid == self.owner
            // Requests in nobody's name, or for a file that its user has opened.
            || matches!(
                request.what,
                What::Read { .. }
                    | What::ReadDir { .. }
                    | What::ReadDirPlus { .. }
                    | What::Write { .. }
                    | What::FSync(_)
                    | What::FSyncDir(_)
                    | What::SyncFs
                    | What::Release { .. }
                    | What::Forget
                    | What::BatchForget { .. }
            )
    }

    /// Carries a request out, which was admitted.
    fn carry_out(
        self: &Arc<Self>,
        request: &Request<'_>,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let from = &request.header;
        match &request.what {
            // There is nothing to do for these; directories are read by cookies that need no state.
            What::Flush | What::OpenDir | What::ReleaseDir => return Err(Errno::NOSYS),
            What::Forget => self.forget(from.nodeid),
            What::BatchForget(all) => all.iter().for_each(|one| self.forget(one.nodeid)),
            What::StatFs => answer.record(&self.statfs()?)?,
            What::SyncFs => self.fs.sync().map_err(|e| errno(&e))?,
            What::GetAttr(g) if g.getattr_flags & abi::GETATTR_FH != 0 => {
                return self.attributes_for_handle(from, g.fh, ticket, answer);
            }
            What::FSync(s) | What::FSyncDir(s) => {
                let datasync = s.fsync_flags & abi::FSYNC_FDATASYNC != 0;
                return self.sync_file(inode(from.nodeid), datasync, ticket);
            }
            What::FAllocate(f) => return self.allocate(from, f, ticket),
            What::LSeek(s) => return self.seek(from.nodeid, s, ticket, answer),
            What::Ioctl(i, _) if i.cmd == groups::COMMIT => {
                return self.commit_group(from, i.fh, ticket, answer);
            }
            What::Ioctl(i, data) if i.cmd == layer::LAY_OVER => {
                return self.lay_over(from, data, ticket, answer);
            }
            What::Ioctl(i, data) if let Some(ask) = Ask::by_ioctl(i.cmd, data) => {
                let member = (inode(from.nodeid), i.fh);
                return self.ask_for_group(member, ask?, ticket, answer);
            }
            What::Ioctl(i, data) if i.cmd == layer::FILL_LAYER => {
                self.fill_layer(from, data, answer)?;
            }
            What::SetXattr { name, value, .. } if let Some(stop) = Stop::asked(name, value) => {
                return match stop {
                    Stop::Upgrade(program) => self.upgrade(from, program, ticket),
                    Stop::Freeze(words) => self.freeze(from, words, ticket),
                };
            }
            What::Write(w, data) => {
                return self.write_file(from, w, data, ticket, answer);
            }
            name @ (What::Lookup { .. }
            | What::SymLink { .. }
            | What::MkNod { .. }
            | What::MkDir { .. }
            | What::Link { .. }
            | What::Create { .. }
            | What::TmpFile { .. }
            | What::Unlink { .. }
            | What::RmDir { .. }
            | What::Rename { .. }) => self.answer_name(from, name, answer)?,
            other => self.answer_inode(from, other, answer)?,
        }
        Ok(Answered::Now)
    }

    /// Answers requests about names.
    pub(crate) fn answer_name(
        &self,
        from: &InHeader,
        what: &What<'_>,
        answer: &mut Answer<'_>,
    ) -> Outcome<()> {
        let dir = inode(from.nodeid);
        let c = self.caller(from);
        let entry = match *what {
            What::Lookup { name } => {
                let Some(found) = self.look_up(&c, dir, name)? else {
                    return answer.record(&no_entry(self.options.timeout));
                };
                found
            }
            What::SymLink { name, target } => self.make_link(&c, dir, name, target.as_bytes())?,
            What::MkNod(m, name) => {
                let c = self.creator(from, m.umask);
                self.make(&c, dir, name, m.mode, decode_rdev(m.rdev))?
            }
            What::MkDir(m, name) => {
                let mode = m.mode & 0o7777 | libc::S_IFDIR;
                self.make(&self.creator(from, m.umask), dir, name, mode, (0, 0))?
            }
            What::Link { ino, name } => self.add_link(&c, inode(ino), dir, name)?,
            What::Create(m, name) => {
                let c = self.creator(from, m.umask);
                let (entry, open) = self.create_open(&c, dir, name, m.mode, m.flags)?;
                self.writers
                    .made(open.fh, from.pid, entry.ino, Some((dir, name)));
                answer.record(&self.entry_out(&entry))?;
                return answer.record(&open);
            }
            What::TmpFile(m) => {
                let c = self.creator(from, m.umask);
                let (entry, open) = self.create_unnamed(&c, dir, m.mode, m.flags)?;
                self.writers.made(open.fh, from.pid, entry.ino, None);
                answer.record(&self.entry_out(&entry))?;
                return answer.record(&open);
            }
            What::Unlink { name } => return self.remove(&c, dir, name, false),
            What::RmDir { name } => return self.remove(&c, dir, name, true),
            What::Rename {
                name,
                new_dir,
                new_name,
                flags,
            } => return self.move_entry(&c, (dir, name), (inode(new_dir), new_name), flags),
            _ => return Err(Errno::NOSYS),
        };
        answer.record(&self.entry_out(&entry))
    }

    /// Answers requests about an inode.
    pub(crate) fn answer_inode(
        &self,
        from: &InHeader,
        what: &What<'_>,
        answer: &mut Answer<'_>,
    ) -> Outcome<()> {
        let ino = inode(from.nodeid);
        let c = self.caller(from);
        match *what {
            What::GetAttr { .. } => answer.attr(
                attr::attr(&self.attributes(ino)?),
                self.keep_attributes(ino),
            ),
            What::StatX => answer.record(&self.statx(ino)?),
            What::SetAttr(to) => {
                let Some(attr) = self.set_attributes(&c, ino, &to)? else {
                    return answer.attr(abi::Attr::default(), Duration::ZERO);
                };
                answer.attr(attr::attr(&attr), self.keep_attributes(ino))
            }
            What::ReadLink => {
                let target = self.fs.readlink(ino).map_err(|e| errno(&e))?;
                answer.bytes(&target)
            }
            What::Access(a) => self.check_access(ino, a.mask),
            What::Open(o) => {
                let open = self.open_file(from, ino, o.flags)?;
                self.writers.opened(open.fh, from.pid, ino);
                answer.record(&open)
            }
            What::Release(r) => self.release_file(ino, r.fh),
            What::Read(r) => self.read_file(ino, &r, answer),
            What::CopyFileRange { from: r, is_64 } => {
                let bytes_copied = self.copy(from, &r)?;
                self.writers.copied(from.pid, &r, bytes_copied);
                if is_64 {
                    return answer.record(&abi::CopyFileRangeOut { bytes_copied });
                }
                let size = must_fit(bytes_copied);
                answer.record(&abi::WriteOut { size, padding: 0 })
            }
            What::ReadDir(r) => self.read_dir(ino, r.offset, &mut answer.names(r.size)),
            What::ReadDirPlus(r) => self.read_dir_plus(ino, r.offset, &mut answer.names(r.size)),
            What::GetXattr { name, size } => {
                answer.xattr(&self.get_attribute(from, ino, name)?, size)
            }
            What::ListXattr { size } => answer.xattr(&self.list_attributes(&c, ino)?, size),
            What::SetXattr { name, value, flags } => {
                self.set_attribute(from, ino, name, value, flags)
            }
            What::RemoveXattr { name } => self.remove_attribute(&c, ino, name),
            What::Ioctl(i, data) => {
                let mut out = self.control_file(from, (ino, i.fh), i.cmd, data)?;
                // Not padded: programs pass an int where the number says long, and padding would be
                // written past it.
                out.truncate(u32_as_usize(i.out_size));
                answer.record(&abi::IoctlOut::default())?;
                answer.bytes(&out)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// Answers access(2) and chdir(2) on a mount where everybody is root (`fakeroot`): a file that
    /// nobody may execute is the only thing that root may not use.
    fn check_access(&self, ino: InodeNo, mask: u32) -> Outcome<()> {
        const EXEC: u32 = 1;
        let mode = self.attributes(ino)?.mode;
        let is_file = mode & stetfs::mode::S_IFMT == stetfs::mode::S_IFREG;
        if is_file && mask & EXEC != 0 && mode & 0o111 == 0 {
            return Err(Errno::ACCESS);
        }
        Ok(())
    }

    /// Notes that the kernel has dropped an inode. The kernel gives up all its references at once.
    fn forget(&self, node: u64) {
        self.known.remove(inode(node));
        if let Err(e) = self.fs.forget(inode(node)) {
            tracing::debug!("forgetting inode {node}: {e}");
        }
    }

    /// Does what the way by which requests come asks for.
    pub(crate) fn follow(&self, over_io_uring: bool) {
        self.over_io_uring.store(over_io_uring, Ordering::Relaxed);
        let places = if over_io_uring {
            ring::may_wait(self.options.threads)
        } else {
            usize::MAX
        };
        self.aside.note_places(places.min(background_slots() / 2));
    }

    fn statfs(&self) -> Outcome<abi::StatFsOut> {
        let s = self.fs.statfs().map_err(|e| errno(&e))?;
        Ok(abi::StatFsOut {
            blocks: s.blocks,
            bfree: s.blocks_free,
            bavail: s.blocks_available,
            files: s.files,
            ffree: s.files_free,
            bsize: s.block_size,
            namelen: s.name_max,
            frsize: s.block_size,
            ..abi::StatFsOut::default()
        })
    }
}

/// Returns whether a request that has failed can be carried out once more. That of pages has told
/// their loss, and that of a group or layer may have ended it.
fn is_repeatable(request: &Request<'_>) -> bool {
    match &request.what {
        What::Write(from, _) => {
            !WriteKind::from_bits_retain(from.write_flags).contains(WriteKind::CACHE)
        }
        What::Ioctl(..) => false,
        _ => true,
    }
}

/// Returns how many of [`MAX_BACKGROUND`] a mount gets at least: an ordinary user's may get fewer.
fn background_slots() -> usize {
    let parameter = std::fs::read_to_string("/sys/module/fuse/parameters/max_user_bgreq");
    let most = parameter.ok().and_then(|most| most.trim().parse().ok());
    usize::from(MAX_BACKGROUND).min(most.unwrap_or(usize::MAX))
}

impl<B: Backend> Server for FsServer<B> {
    fn agree(&self, offer: &Offer) -> Terms {
        let mut capabilities = CAPABILITIES;
        let over_io_uring = self.options.transport == Transport::Uring
            && offer.capabilities.contains(Capabilities::OVER_IO_URING);
        capabilities.set(Capabilities::OVER_IO_URING, over_io_uring);
        self.follow(over_io_uring);
        let request_timeout = self.options.abort_hung.map_or(0, |s| must_fit(s.as_secs()));
        capabilities.set(Capabilities::REQUEST_TIMEOUT, request_timeout > 0);
        capabilities.set(Capabilities::WRITEBACK_CACHE, self.options.writeback);
        // With this the kernel checks permissions, whatever the mount says.
        let checks = !self.options.fakeroot;
        capabilities.set(Capabilities::POSIX_ACL, checks && self.fs.has_acls());
        Terms {
            capabilities,
            readahead: self.options.readahead,
            max_request: self.max_request(),
            max_background: MAX_BACKGROUND,
            request_timeout,
            // With the writeback cache the kernel makes timestamps too: they must be as coarse as
            // those that the volume stores.
            time_step_ns: must_fit(self.fs.time_step().as_nanos()),
        }
    }

    fn answer(
        self: &Arc<Self>,
        request: &Request<'_>,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let from = &request.header;
        if let Some(opcode) = Opcode::from_number(from.opcode) {
            self.requests.0[opcode.index()].fetch_add(1, Ordering::Relaxed);
        }
        if !self.admits(request) {
            return Err(Errno::ACCESS);
        }
        self.fs.asked_by(from.pid);
        self.layer.note(request);
        self.writers.note(request);
        self.answer_surviving(request, ticket, answer)
    }

    fn destroy(&self) {
        // Leaves a clean image to the program that has unmounted it. The session reports an error
        // when it ends.
        let _ = self.closing.close();
    }
}

impl<B: Backend> FsServer<B> {
    /// Answers a request that may come in.
    pub(crate) fn answer_admitted(
        self: &Arc<Self>,
        request: &Request<'_>,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let mut work = || self.carry_out(request, ticket, answer);
        if is_repeatable(request) {
            self.releases.with_room(work)
        } else {
            work()
        }
    }
}
