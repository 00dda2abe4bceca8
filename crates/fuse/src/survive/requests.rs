//! The server's side while it lives: answering, with the log.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::io::Errno;
use stetfs::{Attr, Caller, Changed, FallocateMode, Past, mode};
use stetfs_format::InodeNo;

use super::answered::{appends, entry, note};
use super::log::{Kind, Log};
use super::records::{self, Begun, Ended, Forgot, Released};
use super::{Guard, Heir};
use crate::attr::inode;
use crate::backend::Backend;
use crate::companion::Companion;
use crate::control;
use crate::errno::Outcome;
use crate::files::fallocate_mode;
use crate::ioctl::numbers as ioctls;
use crate::mount::Place;
use crate::server::FsServer;
use crate::session::end::spawn;
use crate::tx::groups::{self, Ask};
use crate::tx::layer;
use crate::wire::abi;
use crate::wire::{Answer, Answered, Link, Request, Ticket, What};

/// In the number of a request that the kernel sends once more (FUSE_UNIQUE_RESEND).
const RESENT: u64 = 1 << 63;

/// What the log has to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Concern {
    /// Nothing.
    None,
    /// It is logged when it has ended.
    Logged,
    /// It is durable before it is answered, and so is everything before it.
    Durable,
    /// It has to do with a transaction.
    Transaction,
    /// It is not carried out: the kernel reads and writes instead.
    Refused,
    /// A file is closed.
    Close(u64),
    /// The kernel forgets inodes.
    Forget,
}

impl Concern {
    fn of(what: &What<'_>) -> Self {
        match what {
            What::SetXattr { name, .. } if *name == OsStr::new(control::CONTROL) => Self::None,
            What::SetAttr(_)
            | What::SymLink { .. }
            | What::MkNod(..)
            | What::MkDir(..)
            | What::Unlink { .. }
            | What::RmDir { .. }
            | What::Rename { .. }
            | What::Link { .. }
            | What::Open(_)
            | What::Create(..)
            | What::TmpFile(_)
            | What::Write(..)
            | What::SetXattr { .. }
            | What::RemoveXattr { .. } => Self::Logged,
            What::FAllocate(f) if moves_contents(f) => Self::Durable,
            What::FAllocate(_) => Self::Logged,
            What::CopyFileRange { .. } => Self::Refused,
            What::Release(r) => Self::Close(r.fh),
            What::Forget | What::BatchForget(_) => Self::Forget,
            What::Ioctl(i, data) => match i.cmd {
                groups::COMMIT
                | groups::ABORT
                | layer::LAY_OVER
                | layer::BEGIN_LAYER
                | layer::FILL_LAYER => Self::Transaction,
                ioctls::SETFLAGS
                | ioctls::SETFLAGS_32
                | ioctls::FSSETXATTR
                | ioctls::SETVERSION
                | ioctls::EXT4_SETVERSION
                | ioctls::SETFSLABEL
                | ioctls::SHUTDOWN
                | ioctls::SHUTDOWN_WITH_MODE => Self::Durable,
                cmd if Ask::by_ioctl(cmd, data).is_some() => Self::Transaction,
                _ => Self::None,
            },
            _ => Self::None,
        }
    }
}

/// Whether contents get other offsets, so that doing it twice does it twice.
fn moves_contents(from: &abi::FAllocateIn) -> bool {
    let moves = FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE;
    fallocate_mode(from).is_ok_and(|mode| mode.intersects(moves))
}

impl<B: Backend> FsServer<B> {
    /// Begins the log, and starts the companion that has another server go on. Nobody is served
    /// yet.
    ///
    /// # Errors
    /// There is no memory or no process for it.
    pub(crate) fn survives(
        self: &Arc<Self>,
        (link, place): (&Link, &Place),
        guard: Option<Guard>,
        start: impl FnOnce(&Heir) -> io::Result<Companion>,
    ) -> io::Result<Option<Companion>> {
        let begins_with = std::mem::take(&mut *self.survive.begins_with.lock());
        let first = || Guard::first(self.options.survive);
        let guard = guard.map_or_else(first, Ok)?;
        let log = Arc::new(Log::new(begins_with, self.fs.memory())?);
        let Some(heir) = self.heir((link, place), &guard, log.file())? else {
            return Ok(None);
        };
        let companion = start(&heir)?;
        guard.take()?;
        let (fs, turned) = (self.fs.clone(), log.clone());
        spawn("log", move || {
            while turned.wait() {
                turned.freed(fs.sync().map_err(|e| e.to_string()));
            }
        })
        .map_err(io::Error::other)?;
        let _ = self.survive.guard.set(guard);
        let _ = self.survive.log.set(log);
        Ok(Some(companion))
    }

    /// Answers a request, and logs what the next server must know of it.
    pub(crate) fn answer_surviving(
        self: &Arc<Self>,
        request: &Request<'_>,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let Some(log) = self.survive.log.get() else {
            return self.answer_admitted(request, ticket, answer);
        };
        let unique = request.header.unique & !RESENT;
        let is_resent = unique != request.header.unique;
        if is_resent && let Some(answered) = self.survive.answered(unique) {
            let bytes = answered.as_ref();
            answer.bytes(bytes.map_err(|errno| Errno::from_raw_os_error(*errno))?)?;
            return Ok(Answered::Now);
        }
        let begun = is_resent.then(|| self.survive.begun(unique)).flatten();
        let was_done = begun.is_some_and(|begun| self.was_done(request, &begun));
        let concern = Concern::of(&request.what);
        match concern {
            Concern::None => return self.answer_admitted(request, ticket, answer),
            Concern::Refused => return Err(Errno::NOSYS),
            Concern::Close(handle) => {
                if !self.log_close(log, inode(request.header.nodeid), handle) {
                    return Ok(Answered::Now);
                }
            }
            Concern::Forget => self.log_forgets(log, request),
            Concern::Transaction => log.begin_binding(),
            Concern::Durable => self.make_durable(log),
            Concern::Logged => {}
        }
        let begun = begun.or_else(|| self.begins(request, unique));
        if let Some(begun) = &begun {
            let parts = [bytemuck::bytes_of(begun), request.bytes];
            log.began(unique, &parts);
        }
        let noting = || {
            let (server, log, bytes) = (self.clone(), log.clone(), request.bytes.to_vec());
            ticket().noting(Box::new(move |done: Result<&[u8], Errno>| {
                if let Ok(request) = Request::decode(&bytes) {
                    server.ended(&log, &request, (concern, begun.as_ref()), done);
                }
            }))
        };
        let done = match begun {
            Some(_) if was_done => self.answer_again(request, answer).map(|()| Answered::Now),
            Some(begun) if is_resent => self.do_as_then(request, &begun, &noting, answer),
            _ => self.answer_admitted(request, &noting, answer),
        };
        match &done {
            Ok(Answered::Now) => {
                self.ended(log, request, (concern, begun.as_ref()), Ok(answer.body()))
            }
            Ok(Answered::Later) => {}
            Err(errno) => self.ended(log, request, (concern, begun.as_ref()), Err(*errno)),
        }
        done
    }

    /// Carries out a request once more as if things stood as they did when it began first.
    fn do_as_then(
        self: &Arc<Self>,
        request: &Request<'_>,
        begun: &Begun,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let mut request = *request;
        match &mut request.what {
            // What was appended before, and is durable, is written once more.
            What::Write(from, _) if appends(from, self.options.writeback) => {
                from.offset = begun.before;
                from.flags &= !libc::O_APPEND;
            }
            // It did not exist then.
            What::SetXattr { flags, .. } if begun.before == 0 => *flags = 0,
            _ => {}
        }
        self.answer_admitted(&request, ticket, answer)
    }

    /// Returns what must be known before a request is carried out, so that it can be told whether
    /// it was; `None`: it can be carried out twice.
    fn begins(&self, request: &Request<'_>, unique: u64) -> Option<Begun> {
        let ino = inode(request.header.nodeid);
        let attr = || self.fs.getattr(ino).ok();
        let mut victim = None;
        let before = match &request.what {
            What::SymLink { .. }
            | What::MkNod(..)
            | What::MkDir(..)
            | What::Create(..)
            | What::Link { .. } => attr()?.version,
            What::Unlink { name } | What::RmDir { name } => {
                victim = self.may_be_known(ino, name);
                attr()?.version
            }
            What::Rename {
                new_dir, new_name, ..
            } => {
                victim = self.may_be_known(inode(*new_dir), new_name);
                attr()?.version
            }
            What::Write(from, _) if appends(from, self.options.writeback) => attr()?.size,
            What::SetXattr { name, flags, .. } if *flags & libc::XATTR_CREATE != 0 => {
                self.has_xattr(ino, name).into()
            }
            What::RemoveXattr { name } => self.has_xattr(ino, name).into(),
            What::FAllocate(from) if moves_contents(from) => attr()?.size,
            _ => return None,
        };
        Some(Begun {
            unique,
            before,
            victim: victim.map_or(0, |attr| attr.ino.0),
            victim_generation: victim.map_or(0, |attr| attr.generation),
        })
    }

    fn has_xattr(&self, ino: InodeNo, name: &OsStr) -> bool {
        let found = self.fs.getxattr(&Caller::root(), ino, name.as_bytes());
        found.is_ok()
    }

    /// Returns the inode of a name if the kernel may use it when it is removed, without having it
    /// open here.
    fn may_be_known(&self, dir: InodeNo, name: &OsStr) -> Option<Attr> {
        let found = self.look_up(&Caller::root(), dir, name).ok()??;
        let kind = found.attr.mode & mode::S_IFMT;
        (kind != mode::S_IFREG && kind != mode::S_IFLNK).then_some(found.attr)
    }

    /// Returns whether a request that has begun before was carried out, and the volume has that.
    pub(super) fn was_done(&self, request: &Request<'_>, begun: &Begun) -> bool {
        let ino = inode(request.header.nodeid);
        let Ok(attr) = self.fs.getattr(ino) else {
            return false;
        };
        let has_name = |name: &OsStr| {
            let found = self.look_up(&Caller::root(), ino, name);
            found.is_ok_and(|found| found.is_some())
        };
        match &request.what {
            What::SymLink { name, .. }
            | What::MkNod(_, name)
            | What::MkDir(_, name)
            | What::Create(_, name)
            | What::Link { name, .. } => attr.version != begun.before && has_name(name),
            What::Unlink { name } | What::RmDir { name } => {
                attr.version != begun.before && !has_name(name)
            }
            What::Rename { .. } => attr.version != begun.before,
            What::RemoveXattr { name } => begun.before == 1 && !self.has_xattr(ino, name),
            What::FAllocate(_) => attr.size != begun.before,
            _ => false,
        }
    }

    /// Answers a request that was carried out before.
    fn answer_again(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Outcome<()> {
        let dir = inode(request.header.nodeid);
        let found = |name: &OsStr| {
            let found = self.look_up(&Caller::root(), dir, name)?;
            found.ok_or(Errno::NOENT)
        };
        match &request.what {
            What::SymLink { name, .. }
            | What::MkNod(_, name)
            | What::MkDir(_, name)
            | What::Link { name, .. } => answer.record(&self.entry_out(&found(name)?)),
            What::Create(m, name) => {
                let entry = found(name)?;
                let open = self.open_file(&request.header, entry.ino, m.flags & !libc::O_TRUNC)?;
                answer.record(&self.entry_out(&entry))?;
                answer.record(&open)
            }
            _ => Ok(()),
        }
    }

    /// Logs the end of a request. Its answer is about to be sent.
    fn ended(
        &self,
        log: &Log,
        request: &Request<'_>,
        (concern, begun): (Concern, Option<&Begun>),
        done: Result<&[u8], Errno>,
    ) {
        let ino = inode(request.header.nodeid);
        let unique = request.header.unique & !RESENT;
        match concern {
            Concern::Durable => {
                self.make_durable(log);
                if let Ok(attr) = self.fs.getattr(ino) {
                    log.with_uses(|uses| uses.has_generation(ino, attr.generation));
                }
            }
            Concern::Transaction => {
                self.make_durable(log);
                log.end_binding(|| self.has_transaction());
            }
            Concern::Close(_) => log.look_at_binding(|| self.has_transaction()),
            _ => {}
        }
        let before = begun.map_or(0, |begun| begun.before);
        let past = match done {
            Ok(answer) if concern == Concern::Logged => self.past(request, before, answer),
            _ => None,
        };
        let (Ok(answer), Some(past)) = (done, past) else {
            if begun.is_some() {
                let errno = done.err().map_or(0, Errno::raw_os_error);
                let only = records::answered(unique, errno);
                let parts = [bytemuck::bytes_of(&only)];
                let answer = done.map(<[u8]>::to_vec).map_err(Errno::raw_os_error);
                log.done((unique, answer), &parts, |_| ());
            }
            return;
        };
        let ended = Ended {
            unique,
            before,
            past,
            held: begun.and_then(|begun| self.is_held_now(begun)),
            request: request.bytes,
        };
        ended.parts(answer, |parts| {
            log.done((unique, Ok(answer.to_vec())), parts, |uses| {
                note(uses, request, &ended, answer);
            });
        });
    }

    /// Returns what a request that has succeeded has made and changed; `None`: nothing that is
    /// still there.
    fn past(&self, request: &Request<'_>, before: u64, answer: &[u8]) -> Option<Past> {
        let ino = inode(request.header.nodeid);
        let attr = |ino| self.fs.getattr(ino).ok();
        let of_names = |dirs: &[InodeNo], made| {
            let changed = dirs.iter().map(|dir| {
                let attr = attr(*dir)?;
                Some(changed(&attr, Some(attr.version)))
            });
            Some(Past {
                at: attr(dirs[0])?.ctime,
                made,
                changed: changed.collect::<Option<_>>()?,
            })
        };
        let of_content = |ino| {
            let attr = attr(ino)?;
            Some(Past {
                at: attr.ctime,
                made: None,
                changed: smallvec::smallvec![changed(&attr, None)],
            })
        };
        match &request.what {
            // It was there already, and was opened.
            What::Create(..) if attr(ino)?.version == before => of_content(entry(answer)?.0),
            What::Create(..) | What::SymLink { .. } | What::MkNod(..) | What::MkDir(..) => {
                of_names(&[ino], Some(entry(answer)?))
            }
            What::Link { .. } | What::Unlink { .. } | What::RmDir { .. } => of_names(&[ino], None),
            What::Rename {
                name,
                new_dir,
                flags,
                ..
            } => {
                let is_whiteout = *flags & libc::RENAME_WHITEOUT != 0;
                let left = is_whiteout.then(|| self.look_up(&Caller::root(), ino, name).ok());
                let made = left.flatten().flatten();
                let made = made.map(|entry| (entry.ino, entry.generation));
                of_names(&[ino, inode(*new_dir)], made)
            }
            What::TmpFile(_) => Some(Past {
                at: attr(entry(answer)?.0)?.ctime,
                made: entry(answer),
                changed: smallvec::SmallVec::new(),
            }),
            // What is staged for a group is no change yet.
            What::Write(from, _) if self.groups.has(ino, from.fh) => None,
            _ => of_content(ino),
        }
    }

    fn is_held_now(&self, begun: &Begun) -> Option<(InodeNo, u32)> {
        if begun.victim == 0 {
            return None;
        }
        let attr = self.fs.getattr(InodeNo(begun.victim)).ok()?;
        let is_held = attr.nlink == 0 && attr.generation == begun.victim_generation;
        is_held.then_some((attr.ino, attr.generation))
    }

    /// Logs that a file is about to be closed. Nobody waits for that, and it cannot fail. Returns
    /// whether it is open: the server before may have closed it, and have died before it answered.
    fn log_close(&self, log: &Log, ino: InodeNo, handle: u64) -> bool {
        let Some(generation) = log.with_uses(|uses| uses.closes(ino, handle)) else {
            return false;
        };
        let released = Released {
            handle,
            ino: ino.0,
            generation,
        };
        log.append(Kind::Released, &[bytemuck::bytes_of(&released)]);
        true
    }

    /// Logs which held inodes the kernel forgets.
    fn log_forgets(&self, log: &Log, request: &Request<'_>) {
        let forget = |node| {
            let ino = inode(node);
            if let Some(generation) = log.with_uses(|uses| uses.forgets(ino)) {
                let forgot = Forgot {
                    ino: ino.0,
                    generation,
                };
                log.append(Kind::Forgot, &[bytemuck::bytes_of(&forgot)]);
            }
        };
        match &request.what {
            What::BatchForget(all) => all.iter().for_each(|one| forget(one.nodeid)),
            _ => forget(request.header.nodeid),
        }
    }

    /// Makes everything durable: the log need not tell of what was before that.
    fn make_durable(&self, log: &Log) {
        let seq = log.next_seq();
        match self.fs.sync() {
            Ok(()) => log.append(Kind::Synced, &[bytemuck::bytes_of(&seq)]),
            Err(e) => log.breaks(&e.to_string()),
        }
    }

    fn has_transaction(&self) -> bool {
        self.groups.are_open() || self.layer.is_under_way()
    }
}

fn changed(attr: &Attr, version: Option<u64>) -> Changed {
    Changed {
        ino: attr.ino,
        generation: attr.generation,
        version,
    }
}
