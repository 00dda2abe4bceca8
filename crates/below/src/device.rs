//! The device that the kernel's ext4 uses: a scheme serves it.
//!
//! # What a request becomes
//!
//! | request | becomes |
//! |---|---|
//! | a block of the journal | collected in memory; with its commit block the transaction goes to the scheme, and is durable when that write returns |
//! | a home with the content that is committed already (jbd2's checkpoint) | nothing |
//! | a home that the scheme's recovery might write, with other content | a transaction, at the next flush or commit |
//! | another home | a write of the medium; in memory, where a power cut tears sectors, a transaction too |
//! | flush | what is left of these transactions; then a flush of the medium, if anything was written to it since the last one |
//! | discard | the blocks are revoked, then discarded |
//! | read | the newest of what the scheme and the medium have; the journal reads as empty (`read.rs`) |
//!
//! # What makes it right
//!
//! 1. What the scheme has committed of a block and nobody has revoked, only the scheme changes:
//!    recovery could write it over anything else.
//! 2. A scheme may log a part of a block only if a power cut leaves the rest at home as it is. A
//!    block that was written home and not flushed, or discarded, is logged as a whole.
//! 3. A block is called fresh only if the committed block bitmap says that it was free, or if it
//!    was discarded or revoked, and not written since.
//! 4. The superblock on the medium has the scheme's mark, and not `needs_recovery`. The kernel
//!    reads it as it has written it.
//! 5. A home that is written while the kernel's log has the block counts for nothing after a crash,
//!    as a replay would undo it. The kernel may write an older content home while it commits a
//!    newer one.
//! 6. After an error nothing is written or flushed any more: the kernel aborts its journal.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hashbrown::HashMap;
use hashlink::LruCache;
use parking_lot::Mutex;
use roaring::RoaringTreemap;
use stetfs::clock::Clock;
use stetfs::{Alone, close_alone};
use stetfs_format::block_size::Piece;
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, FeatureIncompat, Tid};
use stetfs_media::{Block, BlockDev, Cause, Class, MediaError, Meter, Op, Tag};
use stetfs_scheme::{Goal, Opened};
use stetfs_sync::{Background, RwLock};

use crate::collect::Collector;
use crate::core::Core;
use crate::error::BelowError;
use crate::live::Live;
use crate::log::Log;
use crate::map::Map;
use crate::state::{Contents, State};
use crate::stats::{BelowStats, Counters, count};
use crate::superblock;

/// Loose changes that become a transaction without being asked for, in blocks.
const LOOSE_MOST: usize = 64;
/// How often the thread looks whether something is due that it was not woken for.
const ROUND: std::time::Duration = std::time::Duration::from_secs(4);

/// Options of the kernel's mount for a device on which each write is durable when it is answered
/// ([`BelowOptions::write_through`]). It need not be flushed, and a commit block may come before
/// what it commits: the device takes a transaction when all of it is there.
pub const WRITE_THROUGH: [&str; 2] = ["nobarrier", "journal_async_commit"];

/// How the device behaves.
#[derive(Clone, Debug)]
pub struct BelowOptions {
    /// Bytes of committed contents that are kept in memory.
    pub memory: u64,
    /// A thread in the background brings committed blocks home. Without it everything happens in
    /// one order, and a commit that has no room makes it.
    pub background: bool,
    /// Each write is durable when it returns, so that nobody need send flushes. Cheap where the
    /// journal takes everything (`data=journal`): only its commit blocks wait for the medium then.
    pub write_through: bool,
    /// Where transactions get their times.
    pub clock: Clock,
}

impl Default for BelowOptions {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            background: true,
            write_through: false,
            clock: Clock::System,
        }
    }
}

/// The device. See the module's description.
pub struct Below {
    core: Arc<Core>,
    background: Background,
    /// Every write goes through the scheme: its memory is a cache of the volume, or a power cut
    /// could tear a sector that is written home.
    absorbs: bool,
    write_through: bool,
    /// Bytes of committed contents that are kept in memory.
    kept: usize,
}

/// What a block of a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A block of the journal, with its number there.
    Journal(u32),
    /// The superblock's.
    Superblock,
    /// Only the scheme's transactions change it.
    Logged,
    /// It is changed at its home.
    Home,
}

impl Below {
    /// Puts the device in front of an opened scheme.
    ///
    /// # Errors
    /// [`BelowError`]: the journal cannot be followed.
    pub fn new(alone: Alone, options: BelowOptions) -> Result<Self, BelowError> {
        let Opened {
            ref dev, ref terms, ..
        } = alone.opened;
        let size = alone.opened.block_size;
        let Some((log, _)) = Log::find(&**dev) else {
            return Err(BelowError::NoJournal);
        };
        let mut head = Block::zeroed(size.bytes());
        let at = size.start_of(log.place(0));
        dev.read_at(at, head.bytes_mut(), Tag::read(Class::Journal))?;
        let collector = Collector::new(log, head, terms.max_transaction)?;
        let read = |block| {
            let mut content = vec![0; size.bytes()];
            let tag = Tag::read(Class::GroupDesc);
            let read = dev.read_at(size.start_of(block), &mut content, tag);
            read.is_ok().then_some(content)
        };
        let kept = u64_as_usize(options.memory >> size.bits()).max(64);
        let features = &alone.superblock.feature_incompat;
        let core = Core {
            size,
            superblock: superblock::block_of(size),
            state: Mutex::new(State {
                collector,
                live: Live::default(),
                held: Contents::new(),
                map: Map::new(&alone.superblock, read),
                logged: RoaringTreemap::new(),
                unstable: RoaringTreemap::new(),
                flushing: RoaringTreemap::new(),
                undefined: RoaringTreemap::new(),
                loose: Contents::new(),
                committing: Arc::default(),
                newest: LruCache::new(kept),
                digests: HashMap::new(),
            }),
            commit: stetfs_sync::Mutex::new(Tid(1)),
            changing: stetfs_sync::Mutex::new(()),
            checkpointing: stetfs_sync::Mutex::new(()),
            writing: RwLock::new(()),
            // What was there before is not known to be durable.
            is_written: AtomicBool::new(true),
            needs_recovery: AtomicBool::new(features.contains(FeatureIncompat::RECOVER)),
            groups: AtomicU32::new(alone.superblock.groups_count),
            broken: Mutex::new(None),
            counters: Counters::default(),
            clock: options.clock,
            alone,
        };
        // What recovery has found goes home too: from here on the scheme has only what came by.
        core.alone.opened.scheme.checkpoint(Goal::All)?;
        core.flush_homes()?;
        let core = Arc::new(core);
        let background = Background::new("stetfs-below");
        if options.background {
            let core = core.clone();
            background.start(ROUND, move || core.checkpoint());
        }
        let tears = core.dev().atomic_unit() < sector_size(core.dev());
        Ok(Self {
            absorbs: tears || core.alone.opened.scheme.cache().is_some(),
            write_through: options.write_through,
            kept: u64_as_usize(options.memory),
            core,
            background,
        })
    }

    /// The scheme that serves it, with what its opening found.
    pub fn opened(&self) -> &Opened {
        &self.core.alone.opened
    }

    /// Bytes of memory that it takes at most, apart from the scheme's: one transaction that is
    /// collected, one that is committed, and the contents that are kept.
    pub fn heap(&self) -> usize {
        let blocks = self.core.state.lock().collector.longest();
        2 * self.core.size.bytes_of(blocks) + self.kept
    }

    /// What has passed and what was saved.
    pub fn stats(&self) -> BelowStats {
        self.core.counters.read()
    }

    /// Why nothing is written any more; `None` if it is.
    pub fn stopped(&self) -> Option<String> {
        self.core.check().err().map(|error| error.to_string())
    }

    /// Makes everything durable, brings it home, and leaves a plain image. Nobody uses the device
    /// any more.
    ///
    /// # Errors
    /// An error that stopped the device before, or one of the scheme or the medium: the next
    /// opening recovers then.
    pub fn finish(&self) -> Result<(), BelowError> {
        self.background.end();
        let core = &self.core;
        core.check()?;
        core.make_durable()?;
        let sequence = core.state.lock().collector.sequence();
        let needs_recovery = core.needs_recovery.load(Ordering::Relaxed);
        close_alone(&core.alone, sequence, needs_recovery)?;
        Ok(())
    }

    fn kind(&self, state: &State, block: u64) -> Kind {
        if let Some(at) = state.collector.number(block) {
            Kind::Journal(at)
        } else if block == self.core.superblock {
            Kind::Superblock
        } else if self.absorbs || state.logged.contains(block) {
            Kind::Logged
        } else {
            Kind::Home
        }
    }

    /// The parts of a request by block, with their kinds. Neighbours that are changed at their home
    /// are one part.
    fn parts(&self, offset: u64, len: usize) -> Vec<(Kind, Piece)> {
        let state = self.core.state.lock();
        let mut parts: Vec<(Kind, Piece)> = Vec::new();
        for piece in self.core.size.pieces(offset, len) {
            let kind = self.kind(&state, piece.block);
            match parts.last_mut() {
                Some((Kind::Home, last)) if kind == Kind::Home => last.len += piece.len,
                _ => parts.push((kind, piece)),
            }
        }
        parts
    }

    fn write(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), BelowError> {
        let core = &self.core;
        core.check()?;
        let (mut may_be_complete, mut is_open) = (false, false);
        for (kind, piece) in self.parts(offset, data.len()) {
            let part = &data[piece.in_range()];
            match kind {
                Kind::Journal(0) => {
                    let mut state = core.state.lock();
                    let head = state.collector.write_head(piece.within, part)?;
                    state.head_written(head);
                }
                Kind::Journal(at) => {
                    let mut state = core.state.lock();
                    may_be_complete |= state.collector.write(at, piece.within, part)?;
                }
                Kind::Superblock | Kind::Logged => {
                    is_open |= self.write_loose(kind, &piece, part)?;
                }
                Kind::Home => {
                    is_open = true;
                    let write = |at| core.dev().write_at(at, part, tag);
                    self.write_home(&piece, State::written_home, write)?;
                }
            }
        }
        if may_be_complete {
            // Without flushes nothing else says that all parts have come.
            core.commit_closed(&mut core.commit.lock(), self.write_through)?;
            self.wake();
        }
        self.ended(is_open)
    }

    /// Makes a request durable before it is answered, if its writes are to be. `is_open`: it has
    /// written something that is not durable.
    fn ended(&self, is_open: bool) -> Result<(), BelowError> {
        if is_open && self.write_through {
            self.core.make_durable()?;
            self.wake();
        }
        Ok(())
    }

    /// Writes a part of a block that only transactions change. Returns whether that changes it.
    fn write_loose(&self, kind: Kind, piece: &Piece, part: &[u8]) -> Result<bool, BelowError> {
        let core = &self.core;
        let changing = core.changing.lock();
        let is_whole = part.len() == core.size.bytes() && kind == Kind::Logged;
        if is_whole && core.state.lock().is_known(piece.block, part) {
            count(&core.counters.homes_saved, 1);
            return Ok(false);
        }
        let mut content = core.content(piece.block)?;
        if kind == Kind::Superblock {
            let needs_recovery = core.needs_recovery.load(Ordering::Relaxed);
            superblock::unmark(content.make_mut(), core.size, needs_recovery);
        }
        let is_undefined = core.state.lock().is_undefined(piece.block);
        if !is_undefined && content[piece.in_block()] == *part {
            count(&core.counters.homes_saved, 1);
            return Ok(false);
        }
        content.make_mut()[piece.in_block()].copy_from_slice(part);
        if kind == Kind::Superblock {
            core.take_superblock(content.make_mut())?;
        }
        let many = {
            let mut state = core.state.lock();
            if state.live.contains(piece.block) {
                state.held.insert(piece.block, content);
                return Ok(false);
            }
            state.loose.insert(piece.block, content);
            state.loose.len() >= LOOSE_MOST
        };
        drop(changing);
        if many {
            core.commit_loose(&mut core.commit.lock())?;
            self.wake();
        }
        Ok(true)
    }

    fn write_home(
        &self,
        piece: &Piece,
        note: impl FnOnce(&mut State, Range<u64>),
        write: impl FnOnce(u64) -> Result<(), MediaError>,
    ) -> Result<(), BelowError> {
        let core = &self.core;
        let _writing = core.writing.read();
        let at = core.size.offset_of(piece.block) + usize_as_u64(piece.within);
        let blocks = core.size.span(at, usize_as_u64(piece.len));
        count(&core.counters.homes_written, blocks.end - blocks.start);
        let mut state = core.state.lock();
        for block in blocks.clone() {
            state.forget(block);
        }
        note(&mut state, blocks);
        drop(state);
        write(at)?;
        core.is_written.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a range read as zeros: `home` does it where blocks are changed at their home.
    fn clear(
        &self,
        offset: u64,
        len: u64,
        note: impl Fn(&mut State, Range<u64>),
        home: impl Fn(u64, u64) -> Result<(), MediaError>,
    ) -> Result<(), BelowError> {
        /// Bytes that are looked at at once.
        const CHUNK: u64 = 1 << 20;
        let core = &self.core;
        core.check()?;
        let mut done = 0;
        while done < len {
            let chunk = CHUNK.min(len - done);
            for (kind, piece) in self.parts(offset + done, u64_as_usize(chunk)) {
                match kind {
                    Kind::Journal(0) => {}
                    Kind::Journal(at) => {
                        let zeros = vec![0; piece.len];
                        let mut state = core.state.lock();
                        state.collector.write(at, piece.within, &zeros)?;
                    }
                    Kind::Superblock | Kind::Logged => {
                        self.write_loose(kind, &piece, &vec![0; piece.len])?;
                    }
                    Kind::Home => {
                        let home = |at| home(at, usize_as_u64(piece.len));
                        self.write_home(&piece, &note, home)?;
                    }
                }
            }
            done += chunk;
        }
        self.ended(true)
    }

    /// Revokes what the scheme has of the blocks that lie wholly in a range.
    fn revoke(&self, offset: u64, len: u64) -> Result<(), BelowError> {
        let core = &self.core;
        let blocks = core.size.blocks_for(offset)..core.size.block_of(offset + len);
        if blocks.is_empty() {
            return Ok(());
        }
        let mut tid = core.commit.lock();
        let known: Vec<_> = {
            let mut state = core.state.lock();
            for block in blocks.clone() {
                state.loose.remove(&block);
                state.held.remove(&block);
                state.live.forget(block);
            }
            let mut logged = state.logged.iter();
            logged.advance_to(blocks.start);
            let logged = logged.take_while(|block| *block < blocks.end);
            let superblock = core.superblock;
            logged
                .filter(|block| *block != superblock)
                .map(BlockNo)
                .collect()
        };
        if known.is_empty() {
            return Ok(());
        }
        core.commit_blocks(&mut tid, Vec::new(), known)?;
        // The newest record may vouch for what is at these homes: it must not be the newest any
        // more. The kernel discards what it has freed, of which the scheme has nothing.
        Ok(core.bring_home(Goal::All)?)
    }

    fn wake(&self) {
        if self.core.alone.opened.scheme.backlog().is_due {
            self.background.wake();
        }
    }

    fn told<T>(&self, op: Op, result: Result<T, BelowError>) -> Result<T, MediaError> {
        result.map_err(|error| self.core.fail(op, error))
    }
}

/// The sectors of the device on this medium, which no power cut tears: memory has none.
fn sector_size(medium: &dyn BlockDev) -> u32 {
    medium.sector_size().max(512)
}

impl BlockDev for Below {
    fn describe(&self) -> String {
        let Opened { about, dev, .. } = self.opened();
        format!("scheme {} on {}", about.name, dev.describe())
    }

    fn size(&self) -> u64 {
        self.core.dev().size()
    }

    fn sector_size(&self) -> u32 {
        sector_size(self.core.dev())
    }

    fn read_only(&self) -> bool {
        false
    }

    fn volatile_cache(&self) -> bool {
        !self.write_through
    }

    fn host_cached(&self) -> bool {
        self.core.dev().host_cached()
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.told(Op::Read, self.core.read(offset, out, tag))
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let mut at = offset;
        for part in parts {
            self.told(Op::Write, self.write(at, part, tag))?;
            at += usize_as_u64(part.len());
        }
        Ok(())
    }

    fn flush(&self, _: Cause) -> Result<(), MediaError> {
        let core = &self.core;
        count(&core.counters.flushes, 1);
        self.told(Op::Flush, core.check().and_then(|()| core.make_durable()))?;
        self.wake();
        Ok(())
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        self.core.dev().check_backing()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        let cleared = self.core.check();
        let cleared = cleared.and_then(|()| self.revoke(offset, len));
        let cleared = cleared.and_then(|()| {
            let home = |at, len| self.core.dev().discard(at, len);
            self.clear(offset, len, State::discarded, home)
        });
        self.told(Op::Discard, cleared)
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        let zero = |at, len| self.core.dev().write_zeros(at, len, tag);
        self.told(
            Op::Write,
            self.clear(offset, len, State::written_home, zero),
        )
    }

    fn meter(&self) -> &Meter {
        self.core.dev().meter()
    }
}
