//! Delta Journaling: a block that changed little is logged as a small delta in a little NVRAM, any other in the volume's journal.
//!
//! Source: Kim, Min, Eom, "Reducing Excessive Journaling Overhead with Small-Sized NVRAM for Mobile Devices" (IEEE Transactions on Consumer
//! Electronics, 2014).
//!
//! Home is a block device; the delta journal is in persistent memory beside it, 16 MiB unless told otherwise. A commit, in order of writes:
//! 1. `ordered`: data home;
//! 2. each block that overwrites another is compared with what it was: if less than `threshold` percent of the bits differ, or all but so
//!    few, their exclusive or is compressed and goes to the NVRAM. Whatever else there is, new blocks included, goes to the volume's journal;
//! 3. flush, if 1 or 2 wrote anything to the device;
//! 4. descriptor, deltas and commit record into the NVRAM, with a checksum over all of it, and a fence.
//!
//! A checkpoint brings the newest version of every block home. It happens when `nvm_checkpoint` percent of the NVRAM or a quarter of the journal
//! are used, when too much is held in memory, and `checkpoint=` seconds after the oldest commit that it takes in. When there is no room
//! in the NVRAM for a delta, the block goes to the journal; when there is none for the descriptor, the commit waits for a checkpoint.
//!
//! **The paper's hole.** A delta is worth nothing without its base. If home is the base, a home that is torn by a power cut in the middle of a
//! checkpoint takes the newest version with it, and one that was written wholly gets the delta a second time, which undoes it. Therefore
//! a block on which deltas rest is kept whole in the NVRAM while it is on its way home: a batch of up to an eighth of the NVRAM, fence, its homes,
//! flush, a flag in the newest tag of each of them, fence, and the batch is forgotten. It costs the NVRAM one copy of each such block a
//! checkpoint and the device a flush a batch; nothing is written to the device that the paper does not write. A block whose base is in the
//! journal needs none of this. Each delta carries the checksum of the block that it leads to (4 bytes), so that a wrong base is never taken for the right
//! one.
//!
//! Further deviations from the paper: one fence a commit, since the checksum vouches for the deltas; blocks that begin like a record of
//! JBD2 are escaped in the journal, as there; freed blocks are named by tags of their own; the journal's superblock stays as it is, and the mark of a
//! private log keeps the kernel and e2fsck away.
//!
//! Recovery: see [`recovery`].

mod recovery;
mod region;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use smallvec::{SmallVec, smallvec};
use stetfs_format::checksum::crc32c;
use stetfs_format::delta_log::{DELTA_HEADER, InFlightEntry, Record, Tag as BlockTag, TagFlags};
use stetfs_format::jbd2::{JBD2_MAGIC, JournalSuperblock};
use stetfs_format::private_log::{LogHeader, Tail};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{Block, BlockRef, Cause, Class, Dirty, Tag};

use self::recovery::Left;
use self::region::{Flight, Region, TagWord};
use super::home::{InFlight, Write, write_home};
use super::jbd2::area::Area;
use super::period::{CHECKPOINT_INTERVAL, Period};
use crate::delta::{COMPRESSORS, Compressor, difference};
use crate::error::{JournalError, Result};
use crate::planted::{Bug, is_planted};
use crate::scheme::{
    About, DataMode, DataPromise, Goal, Held, LoggedBlock, Mark, OpenArgs, OptionAbout,
    RecoveryReport, Scheme, Snapshot,
};

pub(crate) static ABOUT: About = About {
    name: "dj",
    title: "Delta Journaling: blocks that changed little are logged as small deltas in NVRAM",
    source: "Kim, Min, Eom, Delta Journaling, IEEE Trans. Consumer Electronics 2014",
    modes: &[DataMode::Journal, DataMode::Ordered],
    needs_journal_area: true,
    needs_pmem: false,
    needs_remap: false,
    nvm: Some(16 << 20),
    caches: false,
    is_buffer_cache: false,
    mark: Mark::PrivateLog,
    atomic: true,
    wants_base: true,
    relocates: false,
    cost: "16 bytes and a delta a changed block and 1 fence; whole blocks and 1 flush where deltas are large; n blocks home at checkpoint",
    options: &[
        &THRESHOLD,
        &DECIDE,
        &COMPRESS,
        &NVM_CHECKPOINT,
        &CHECKPOINT_INTERVAL,
    ],
};

static THRESHOLD: OptionAbout = OptionAbout {
    name: "threshold",
    syntax: "PERCENT",
    default: "25",
    what: "how much of a block may differ, or be small, so that it is logged as a delta (scheme dj)",
};

static DECIDE: OptionAbout = OptionAbout {
    name: "decide",
    syntax: "level|size",
    default: "level",
    what: "whether that is the share of the bits that differ, or the size of the compressed delta",
};

static COMPRESS: OptionAbout = OptionAbout {
    name: "compress",
    syntax: "lzo|lz4|zstd|deflate|ranges",
    default: "lzo",
    what: "how deltas are made small",
};

static NVM_CHECKPOINT: OptionAbout = OptionAbout {
    name: "nvm_checkpoint",
    syntax: "PERCENT",
    default: "75",
    what: "how much of the NVRAM is filled before a checkpoint",
};

/// The first block of the journal's inode that holds blocks: JBD2's superblock and our header are before it.
const FIRST: u32 = 2;

struct Dj {
    region: Region,
    area: Area,
    mode: DataMode,
    /// Percent.
    threshold: u64,
    by_size: bool,
    with: &'static dyn Compressor,
    /// Bytes of the ring in use at which a checkpoint is wanted.
    most_used: u64,
    /// Contents that may be held before a checkpoint is wanted, in blocks.
    most_held: usize,
    period: Period,
    log: Mutex<Log>,
    /// The newest committed version of each block that is not home yet.
    index: RwLock<HashMap<BlockNo, Version>>,
    /// What looks from outside see: blocks in `index`, bytes of the ring in use, blocks of the journal in use.
    held: AtomicUsize,
    used: AtomicU64,
    used_blocks: AtomicU64,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    in_flight: InFlight,
    /// Checkpoints that commits have made.
    forced: AtomicU64,
}

struct Log {
    /// Where the next transaction goes, and the oldest that would be replayed.
    head: u64,
    tail: u64,
    sequence: Tid,
    /// The block of the journal that is written next, and how many may be.
    next: u32,
    free: u32,
    /// From tail to head.
    transactions: VecDeque<Logged>,
    record: Record,
}

/// A transaction in the ring.
struct Logged {
    sequence: Tid,
    /// Where the next one begins.
    end: u64,
    /// Blocks of the journal that it takes.
    blocks: u32,
    /// Blocks that need it to be replayed.
    needed: u32,
}

struct Version {
    class: Class,
    content: BlockRef,
    sequence: Tid,
    /// Its newest tag.
    tag: TagWord,
    /// The transactions that a replay takes it from.
    transactions: SmallVec<[Tid; 2]>,
    /// The last of them that has all of it. None: they rest on home.
    whole: Option<Tid>,
}

/// How a block is logged.
enum How {
    Delta(Vec<u8>),
    Whole,
}

pub(crate) fn open(args: OpenArgs) -> Result<(Box<dyn Scheme>, RecoveryReport)> {
    args.options.check_known(&ABOUT)?;
    let options = &args.options;
    let by_size = match options.value(&DECIDE) {
        "level" => false,
        "size" => true,
        _ => return Err(options.wrong(&ABOUT, &DECIDE)),
    };
    let name = options.value(&COMPRESS);
    let with = COMPRESSORS.into_iter().find(|with| with.name() == name);
    let with = with.ok_or_else(|| options.wrong(&ABOUT, &COMPRESS))?;
    let threshold = options.percent(&ABOUT, &THRESHOLD)?;
    let nvm_checkpoint = options.percent(&ABOUT, &NVM_CHECKPOINT)?;
    let period = Period::of(&ABOUT, options)?;
    let Some(nvm) = args.nvm.clone() else {
        let why = "scheme dj needs some: mount with nvm=FILE (or `stetfs fsck --nvm FILE`)";
        return Err(JournalError::Nvm(why.to_owned()));
    };
    let area = journal_area(&args)?;
    let mode = options.data.unwrap_or(ABOUT.modes[0]);
    let (region, start) = take_region(&args, &area, nvm)?;
    let capacity = region.capacity();
    let dj = Dj {
        mode,
        threshold,
        by_size,
        with,
        most_used: capacity * nvm_checkpoint / 100,
        most_held: (args.memory / args.block_size).max(16),
        period,
        log: Mutex::new(Log {
            head: u64::from(start.tail.line) * 64,
            tail: u64::from(start.tail.line) * 64,
            sequence: start.tail.sequence,
            next: area.first,
            free: area.capacity(),
            transactions: VecDeque::new(),
            record: Record::default(),
        }),
        index: RwLock::default(),
        held: AtomicUsize::new(0),
        used: AtomicU64::new(0),
        used_blocks: AtomicU64::new(0),
        checkpointing: Mutex::new(()),
        in_flight: InFlight::default(),
        forced: AtomicU64::new(0),
        region,
        area,
    };
    let report = match start.is_left {
        true => dj.recover(&args)?,
        false => RecoveryReport::default(),
    };
    Ok((Box::new(dj), report))
}

/// The journal's blocks, as many as its superblock says that there are.
fn journal_area(args: &OpenArgs) -> Result<Area> {
    let mut area = Area::new(args.dev.clone(), args.block_size, args.log.clone());
    let mut raw = Block::zeroed(args.block_size);
    area.read(0, raw.bytes_mut())?;
    let superblock = JournalSuperblock::decode(raw.bytes(), args.block_size)?;
    area.set_log(FIRST, superblock.maxlen)?;
    Ok(area)
}

/// Where the region's log goes on, and whether something in it is to be brought home.
struct Start {
    tail: Tail,
    is_left: bool,
}

/// Finds out whose the region is, and makes it ours or opens it again.
fn take_region(
    args: &OpenArgs,
    area: &Area,
    nvm: std::sync::Arc<dyn stetfs_media::Pmem>,
) -> Result<(Region, Start)> {
    let unusable = |why: String| Err(JournalError::Nvm(why));
    let found = Region::owner(&*nvm)?;
    let shown = nvm.describe();
    if !args.has_private_log {
        if let Ok(found) = &found
            && !found.is_closed
            && (found.uuid != args.uuid || recovery::holds_any(&nvm, found, args.block_size)?)
        {
            return unusable(format!(
                "{shown} holds what another volume, or a copy of this one, has not brought home yet"
            ));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch = now.unwrap_or_default().as_nanos() as u64;
        let region = Region::new(nvm, args.block_size, args.uuid, epoch)?;
        let tail = Tail {
            line: 0,
            sequence: Tid(1),
        };
        if args.writable {
            region.format(ABOUT.name, tail)?;
            let mut header = vec![0; args.block_size];
            LogHeader {
                scheme: ABOUT.name.to_owned(),
                uuid: args.uuid,
                epoch,
                is_closed: false,
                tail,
            }
            .encode(&mut header);
            area.write_record(1, &header)?;
        }
        return Ok((
            region,
            Start {
                tail,
                is_left: false,
            },
        ));
    }
    let mut raw = vec![0; args.block_size];
    area.read(1, &mut raw)?;
    let ours = LogHeader::decode(&raw)?;
    let lost =
        "what was committed last is in another region, without which the volume cannot be used";
    let Ok(found) = found else {
        return unusable(format!("{shown} holds no delta journal; {lost}"));
    };
    if found.scheme != ABOUT.name || found.uuid != args.uuid {
        return unusable(format!("{shown} belongs to another volume; {lost}"));
    }
    if found.epoch != ours.epoch {
        return unusable(format!(
            "{shown} is a region that the volume had at another time; {lost}"
        ));
    }
    let region = Region::new(nvm, args.block_size, args.uuid, found.epoch)?;
    if !region.is_divided_so()? || u64::from(found.tail.line) * 64 >= region.capacity() {
        return unusable(format!("{shown} has not the size that it had; {lost}"));
    }
    if !found.is_closed && !args.writable {
        return unusable(format!(
            "{shown} must be replayed, which needs a writable volume"
        ));
    }
    if found.is_closed && args.writable {
        region.write_state(false)?;
    }
    let start = Start {
        tail: found.tail,
        is_left: !found.is_closed,
    };
    Ok((region, start))
}

impl Scheme for Dj {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn data_promise(&self) -> DataPromise {
        match self.mode {
            DataMode::Journal => DataPromise::Atomic,
            _ => DataPromise::Ordered,
        }
    }

    fn max_transaction(&self) -> u32 {
        // All of them may be whole, and half of the tags may be of freed blocks.
        let tags = self.region.capacity() / 8 / Record::length(1, 0);
        (self.area.capacity() / 4).min(u32::try_from(tags).unwrap_or(u32::MAX))
    }

    fn logs_data(&self) -> bool {
        self.mode == DataMode::Journal
    }

    fn read(&self, block: BlockNo) -> Result<Held> {
        if self.held.load(Relaxed) == 0 {
            return Ok(Held::Home);
        }
        let index = self.index.read();
        Ok(index
            .get(&block)
            .map_or(Held::Home, |version| Held::Here(version.content.clone())))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        if self.held.load(Relaxed) == 0 {
            return false;
        }
        let index = self.index.read();
        u64::from(count) > index.len() as u64
            || (0..u64::from(count)).any(|i| index.contains_key(&start.plus(i)))
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let logged: Vec<&LoggedBlock> = match self.mode {
            DataMode::Journal => txn.data.iter().chain(&txn.meta).collect(),
            _ => txn.meta.iter().collect(),
        };
        let revoked: Vec<BlockNo> = {
            let index = self.index.read();
            let is_logged =
                |block: &BlockNo| index.contains_key(block) && !is_planted(Bug::ForgottenRevoke);
            txn.revoked.iter().copied().filter(is_logged).collect()
        };
        let mut on_device = Dirty::on(&*self.area.dev);
        let mut is_on_device = false;
        if self.mode != DataMode::Journal && !txn.data.is_empty() {
            self.in_flight
                .write_data(&mut on_device, self.area.block_size, &txn.data)?;
            is_on_device = true;
        }
        if logged.is_empty() && revoked.is_empty() {
            if is_on_device {
                let _durable = on_device.submit().flush(Cause::Home)?;
            }
            return Ok(());
        }
        self.make_room(logged.len(), revoked.len())?;
        let mut log = self.log.lock();
        let (at, sequence) = (log.head, log.sequence);
        let mut record = std::mem::take(&mut log.record);
        let (first, room) = (log.next, self.region.capacity() - (log.head - log.tail));
        drop(log);
        let how = self.describe(&mut record, &logged, &revoked, (sequence, first, room));
        let wholes: Vec<(BlockRef, Tag)> = how.wholes;
        if !wholes.is_empty() {
            let parts: Vec<(Tag, &[u8])> = wholes
                .iter()
                .map(|(block, tag)| (*tag, &block[..]))
                .collect();
            self.area.write(&mut on_device, first, &parts)?;
            is_on_device = true;
        }
        record.seal(sequence, self.region.seed(at, sequence), txn.time);
        let durable = match is_on_device {
            true if !is_planted(Bug::MissingBodyFlush) => {
                Some(on_device.submit().flush(Cause::Log)?)
            }
            _ => None,
        };
        self.region.write_transaction(durable, at, &record.0)?;
        let length = record.0.len() as u64;
        let mut log = self.log.lock();
        log.head += length;
        log.sequence = sequence.next();
        log.next = self.area.step(first, wholes.len() as u32);
        log.free -= wholes.len() as u32;
        let entry = Logged {
            sequence,
            end: log.head,
            blocks: wholes.len() as u32,
            needed: 0,
        };
        log.transactions.push_back(entry);
        log.record = record;
        self.add(&mut log, at, &logged, &how.tags, &txn.revoked);
        self.note_use(&log);
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        self.used.load(Relaxed) > self.most_used
            || self.used_blocks.load(Relaxed) > u64::from(self.area.capacity() / 4)
            || self.held.load(Relaxed) > self.most_held
            || self.period.is_over()
    }

    fn forced_checkpoints(&self) -> u64 {
        self.forced.load(Relaxed)
    }

    fn checkpoint(&self, _goal: Goal) -> Result<()> {
        self.bring_home()
    }

    fn close(&self) -> Result<()> {
        self.bring_home()?;
        self.region.write_state(true)
    }
}

/// What a transaction consists of.
struct Described {
    /// As the tags are on the medium, those of freed blocks last.
    tags: Vec<BlockTag>,
    /// What goes to the journal.
    wholes: Vec<(BlockRef, Tag)>,
}

impl Dj {
    /// Fills `record` with descriptor, tags and deltas. `place`: the transaction's number, the first block of the journal that it may take, and the bytes
    /// of the ring.
    fn describe(
        &self,
        record: &mut Record,
        logged: &[&LoggedBlock],
        revoked: &[BlockNo],
        (sequence, first, room): (Tid, u32, u64),
    ) -> Described {
        let count = logged.len() + revoked.len();
        record.begin(sequence, count);
        let mut described = Described {
            tags: Vec::with_capacity(count),
            wholes: Vec::new(),
        };
        let mut scratch = Scratch::default();
        for (n, block) in logged.iter().enumerate() {
            let deltas = record.0.len() - Record::tag_at(count);
            let has_room = |more: usize| Record::length(count, deltas + more) < room;
            let tag = match self.how(block, &mut scratch) {
                How::Delta(delta) if has_room(DELTA_HEADER + delta.len()) => {
                    let place = record.0.len() as u32;
                    let checksum = crc32c(!0, &block.content);
                    record.0.extend(checksum.to_le_bytes());
                    record.0.extend_from_slice(&delta);
                    let length = (DELTA_HEADER + delta.len()) as u32;
                    scratch.delta = delta;
                    BlockTag {
                        home: block.home,
                        flags: TagFlags::from_bits_retain(u16::from(self.with.number()) << 8),
                        place,
                        length,
                    }
                }
                _ => self.log_whole(block, first, &mut described.wholes),
            };
            record.set_tag(n, &tag);
            described.tags.push(tag);
        }
        for (n, block) in revoked.iter().enumerate() {
            let tag = BlockTag {
                home: *block,
                flags: TagFlags::REVOKE,
                place: 0,
                length: 0,
            };
            record.set_tag(logged.len() + n, &tag);
            described.tags.push(tag);
        }
        described
    }

    /// By the paper's section III.C.
    fn how(&self, block: &LoggedBlock, scratch: &mut Scratch) -> How {
        let Some(base) = block.base.as_ref().filter(|_| !block.fresh) else {
            return How::Whole;
        };
        let size = block.content.len();
        scratch.xor.resize(size, 0);
        let differ = difference(base, &block.content, &mut scratch.xor) * 100;
        let all = size as u64 * 8;
        let few = self.threshold * all;
        if !self.by_size && differ >= few && all * 100 - differ >= few {
            return How::Whole;
        }
        let mut delta = std::mem::take(&mut scratch.delta);
        self.with.compress(&scratch.xor, &mut delta);
        let most = match self.by_size {
            true => size * self.threshold as usize / 100,
            false => size - 1,
        };
        match delta.len() + DELTA_HEADER <= most {
            true => How::Delta(delta),
            false => {
                scratch.delta = delta;
                How::Whole
            }
        }
    }

    fn log_whole(
        &self,
        block: &LoggedBlock,
        first: u32,
        wholes: &mut Vec<(BlockRef, Tag)>,
    ) -> BlockTag {
        let place = self.area.step(first, wholes.len() as u32);
        let mut flags = TagFlags::NON_DELTA;
        let mut content = block.content.clone();
        if content.starts_with(&JBD2_MAGIC.to_be_bytes()) {
            flags |= TagFlags::ESCAPE;
            let mut copy = Block::copy_of(&content);
            copy.bytes_mut()[..4].fill(0);
            content = copy.into();
        }
        wholes.push((content, Tag::new(block.class, Cause::Log)));
        BlockTag {
            home: block.home,
            flags,
            place,
            length: crc32c(!0, &block.content),
        }
    }

    /// Waits until descriptor and commit record fit with every block in the journal.
    fn make_room(&self, logged: usize, revoked: usize) -> Result<()> {
        let (bytes, blocks) = (Record::length(logged + revoked, 0), logged as u32);
        let fits = || {
            let log = self.log.lock();
            let free = self.region.capacity() - (log.head - log.tail);
            bytes < free && blocks < log.free
        };
        if fits() {
            return Ok(());
        }
        self.forced.fetch_add(1, Relaxed);
        self.bring_home()?;
        match fits() {
            true => Ok(()),
            false => Err(JournalError::Unusable(format!(
                "a transaction of {logged} blocks does not fit into it"
            ))),
        }
    }

    /// The transaction at the end of the log is durable: its versions are the newest, what it freed is gone.
    fn add(
        &self,
        log: &mut Log,
        at: u64,
        logged: &[&LoggedBlock],
        tags: &[BlockTag],
        revoked: &[BlockNo],
    ) {
        let sequence = log.transactions.back().expect("it was added").sequence;
        let mut index = self.index.write();
        for (n, (block, tag)) in logged.iter().zip(tags).enumerate() {
            let is_whole = tag.flags.contains(TagFlags::NON_DELTA);
            let before = index.remove(&block.home);
            let mut version = Version {
                class: block.class,
                content: block.content.clone(),
                sequence,
                tag: TagWord {
                    at: at + Record::tag_at(n) as u64,
                    word: tag.word(),
                },
                transactions: smallvec![],
                whole: is_whole.then_some(sequence),
            };
            match before {
                Some(before) if is_whole => log.need_no_more(&before.transactions),
                Some(before) => {
                    version.transactions = before.transactions;
                    version.whole = before.whole;
                }
                None => {}
            }
            version.transactions.push(sequence);
            index.insert(block.home, version);
        }
        log.transactions.back_mut().expect("it was added").needed += logged.len() as u32;
        for block in revoked {
            if let Some(before) = index.remove(block) {
                log.need_no_more(&before.transactions);
            }
        }
        self.held.store(index.len(), Relaxed);
        self.period.note_commit();
    }

    fn note_use(&self, log: &Log) {
        self.used.store(log.head - log.tail, Relaxed);
        let blocks = self.area.capacity() - log.free;
        self.used_blocks.store(blocks.into(), Relaxed);
    }

    /// Brings everything home that was committed when this was called, and takes it out of the log.
    fn bring_home(&self) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock();
        let (mut homes, started): (Vec<BlockNo>, Instant) = {
            let index = self.index.read();
            (index.keys().copied().collect(), Instant::now())
        };
        homes.sort_unstable();
        for batch in homes.chunks(self.region.geometry.in_flight as usize) {
            self.bring_batch_home(batch)?;
        }
        self.drop_oldest()?;
        let is_all_home = self.held.load(Relaxed) == 0;
        self.period
            .note_checkpoint((!is_all_home).then_some(started));
        Ok(())
    }

    fn bring_batch_home(&self, homes: &[BlockNo]) -> Result<()> {
        let find = || {
            let index = self.index.read();
            let due = homes.iter();
            due.filter_map(|home| Due::of(*home, index.get(home)?))
                .collect()
        };
        let due: Vec<Due> = self.in_flight.take_off(find, |due| due.home);
        let landed = self.land(&due);
        self.in_flight.land();
        landed?;
        self.are_home(&due);
        Ok(())
    }

    /// Writes blocks home, durably, and says so in their tags. A cut at any moment leaves each with a version that a replay can start from.
    fn land(&self, due: &[Due]) -> Result<()> {
        if due.is_empty() {
            return Ok(());
        }
        let resting = due.iter().filter(|due| due.rests_on_home);
        let flights: Vec<Flight<'_>> = resting
            .map(|due| Flight {
                entry: InFlightEntry {
                    home: due.home,
                    sequence: due.sequence,
                    checksum: crc32c(!0, &due.content),
                },
                content: &due.content,
            })
            .collect();
        if !flights.is_empty() && !is_planted(Bug::UnkeptBase) {
            self.region.keep(&flights)?;
        }
        let writes = due.iter().map(|due| Write {
            home: due.home,
            class: due.class,
            content: &due.content,
        });
        let (dev, size) = (&*self.area.dev, self.area.block_size);
        write_home(dev, size, Cause::Checkpoint, writes.collect())?;
        if !is_planted(Bug::MissingCheckpointFlush) {
            dev.flush(Cause::Checkpoint)?;
        }
        if !is_planted(Bug::DeltaTwice) {
            self.region.note_home(due.iter().map(|due| due.tag))?;
        }
        // Before the index forgets them: whoever frees one of them from then on leaves no trace in the log.
        self.region.forget_kept()
    }

    /// These versions are home.
    fn are_home(&self, due: &[Due]) {
        let mut log = self.log.lock();
        let mut index = self.index.write();
        for due in due {
            let Some(version) = index.get_mut(&due.home) else {
                continue;
            };
            let is_later = |tid: &Tid| tid.is_after(due.sequence);
            let (later, done): (SmallVec<[Tid; 2]>, SmallVec<[Tid; 2]>) =
                version.transactions.iter().copied().partition(is_later);
            log.need_no_more(&done);
            if later.is_empty() {
                index.remove(&due.home);
                continue;
            }
            version.transactions = later;
            version.whole = version.whole.filter(is_later);
        }
        self.held.store(index.len(), Relaxed);
    }

    /// Takes transactions out of the log that no block needs.
    fn drop_oldest(&self) -> Result<()> {
        let (n, tail, sequence) = {
            let log = self.log.lock();
            let unneeded = log.transactions.iter().take_while(|t| t.needed == 0);
            let n = unneeded.count();
            let Some(last) = n.checked_sub(1) else {
                return Ok(());
            };
            let last = &log.transactions[last];
            (n, last.end, last.sequence.next())
        };
        self.region.write_tail(tail, sequence, Cause::Checkpoint)?;
        let mut log = self.log.lock();
        let blocks: u32 = log
            .transactions
            .drain(..n)
            .map(|logged| logged.blocks)
            .sum();
        log.free += blocks;
        log.tail = tail;
        self.note_use(&log);
        Ok(())
    }

    /// Brings home what a crash left.
    fn recover(&self, args: &OpenArgs) -> Result<RecoveryReport> {
        let (at, sequence) = {
            let log = self.log.lock();
            (log.head, log.sequence)
        };
        let left = recovery::read(&self.region, &self.area, args.blocks, at, sequence)?;
        self.land_kept(&left)?;
        let mut report = RecoveryReport {
            was_needed: true,
            transactions: left.transactions.len() as u32,
            blocks: left.pending.len() as u64,
            revoked: left.revoked,
            ..RecoveryReport::default()
        };
        if let (Some(first), Some(last)) = (left.transactions.first(), left.transactions.last()) {
            report.sequences = Some((first.sequence.0, last.sequence.0));
            let mut log = self.log.lock();
            log.head = last.end;
            // The next one skips a number, so that remains of an incomplete one are never taken for it.
            log.sequence = last.sequence.next();
        }
        self.take_over(&left)?;
        self.bring_home()?;
        let mut log = self.log.lock();
        log.sequence = log.sequence.next();
        (log.next, log.free) = (self.area.first, self.area.capacity());
        let (head, sequence) = (log.head, log.sequence);
        log.tail = head;
        drop(log);
        self.region.write_tail(head, sequence, Cause::Recovery)?;
        Ok(report)
    }

    /// Writes home what was on its way.
    fn land_kept(&self, left: &Left) -> Result<()> {
        let writes = left.kept.iter().map(|(entry, content, _)| Write {
            home: entry.home,
            class: Class::Data,
            content,
        });
        if !left.kept.is_empty() {
            let (dev, size) = (&*self.area.dev, self.area.block_size);
            write_home(dev, size, Cause::Recovery, writes.collect())?;
            dev.flush(Cause::Recovery)?;
            let tags = left.kept.iter().filter_map(|(.., tag)| *tag);
            self.region.note_home(tags)?;
        }
        self.region.forget_kept()
    }

    /// Makes what was found the state of the log.
    fn take_over(&self, left: &Left) -> Result<()> {
        let mut log = self.log.lock();
        let mut index = self.index.write();
        for found in &left.transactions {
            log.transactions.push_back(Logged {
                sequence: found.sequence,
                end: found.end,
                blocks: 0,
                needed: 0,
            });
        }
        for (home, pending) in &left.pending {
            for tid in &pending.transactions {
                log.transaction(*tid).needed += 1;
            }
            let version = Version {
                class: Class::Data,
                content: left.content(*home, pending, &self.area)?,
                sequence: *pending.transactions.last().expect("it has a tag"),
                tag: pending.tag,
                transactions: pending.transactions.iter().copied().collect(),
                whole: pending.whole,
            };
            index.insert(*home, version);
        }
        self.held.store(index.len(), Relaxed);
        Ok(())
    }
}

/// Buffers that blocks are compared and compressed in.
#[derive(Default)]
struct Scratch {
    xor: Vec<u8>,
    delta: Vec<u8>,
}

/// A block that a checkpoint writes home.
struct Due {
    home: BlockNo,
    class: Class,
    content: BlockRef,
    sequence: Tid,
    tag: TagWord,
    rests_on_home: bool,
}

impl Due {
    fn of(home: BlockNo, version: &Version) -> Option<Self> {
        Some(Self {
            home,
            class: version.class,
            content: version.content.clone(),
            sequence: version.sequence,
            tag: version.tag,
            rests_on_home: version.whole.is_none(),
        })
    }
}

impl Log {
    /// A block takes nothing from these transactions any more.
    fn need_no_more(&mut self, transactions: &[Tid]) {
        for tid in transactions {
            self.transaction(*tid).needed -= 1;
        }
    }

    fn transaction(&mut self, tid: Tid) -> &mut Logged {
        let first = self
            .transactions
            .front()
            .expect("it is in the log")
            .sequence;
        &mut self.transactions[tid.0.wrapping_sub(first.0) as usize]
    }
}
