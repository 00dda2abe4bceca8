//! The pair of a volume and a region of persistent memory beside it: whether they belong together
//! and are of the same time.
//!
//! The region begins with a [`RegionHeader`]. Block 1 of the volume's journal area has a
//! [`VolumeRecord`], which counts as long as the superblock says that the newest content is not
//! home. Only the two together show that volume and region belong together: by the volume's UUID,
//! by an epoch that differs each time a region is begun, and by the numbers that both write at each
//! checkpoint ([`stetfs_format::nvm_pair`]). The cases: [`LEFT`].
//!
//! In order of writes:
//! - Beginning: the region says that it is being made, fence; its content, fence; its first word,
//!   fence; the volume's record, flush; the mark.
//! - A checkpoint: the region's state, fence; homes and the volume's record, flush; the region's
//!   state, fence. Then the region may give up the blocks that are home. (dj does so with each
//!   batch of a checkpoint, and writes the number with the first batch.)
//! - Closing: everything home; the volume's record, flush; the region's state, fence; the mark.
//! - A commit that writes data home: the data and the volume's record, flush; the commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use stetfs_format::nvm_pair::{
    COMMITTED_OFFSET, MAKING_WORD, Mismatch, PairState, REGION_WORD, RegionHeader, RegionState,
    STATE_OFFSETS, VolumeRecord, committed_of, committed_word,
};
use stetfs_format::private_log::{LogHeader, Tail};
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockSize, Corrupt, Tid};
use stetfs_media::{BlockDev, Cause, Class, Pmem, Tag};
use stetfs_planted::{Bug, is_planted};

use crate::parts::area::JournalArea;
use stetfs_scheme::{About, OpenArgs, RecoveryCase, Result, SchemeError, recovery_cases};
use stetfs_sync::Mutex;

recovery_cases! {
    LEFT:
    SHUT "a volume that needs no memory, and its region, closed"
        => "a new region", "everything that was in it is home";
    BLANK "a volume that needs no memory, and memory with nothing but zeros, or a region whose \
        making was cut short"
        => "a new region", "nothing is lost";
    OPEN_EMPTY "a volume that needs no memory, and its region, open, with nothing in it"
        => "a new region",
        "the mount was cut short before it set the mark, or the unmount before it closed the \
            region";
    OPEN_FULL "a volume that needs no memory, and its region, open, with something in it; or \
        another volume's, open"
        => "error", "a copy of this volume, or that one, has its newest content in it";
    FOREIGN "a volume that needs no memory, and anything else in the memory"
        => "error, unless `nvm-new` says that it may be overwritten", "it may be somebody's";
    OVERWRITTEN "the same, and `nvm-new`"
        => "a new region", "its owner says so";
    NO_RECORD "a marked volume, and no intact record of its own in block 1 of the log"
        => "error", "which region has its newest content cannot be told";
    LOST_REGION "a marked volume, and no region of its own, its scheme and that time"
        => "error", "the newest content is in another region";
    DAMAGED "a marked volume, and a damaged region"
        => "error", "what is in it cannot be told";
    RESIZED "a marked volume, and its region in memory of another size"
        => "error", "its log goes around elsewhere";
    OLDER_VOLUME "a marked volume, and its region, which is of a later time"
        => "error", "the volume is an older copy: what was brought home since is missing in it";
    OLDER_REGION "a marked volume, and its region, which is of an earlier time"
        => "error", "the region is an older copy: what was committed since is missing in it";
    READ_ONLY "a marked volume that may only be read, and its region"
        => "error", "home has not got the newest content";
    PAIR "a marked volume, and its region of the same time"
        => "recovery", "they belong together";
}

const CONTROL: Tag = Tag::new(Class::Journal, Cause::Control);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

pub(crate) const LOST: &str =
    "what was committed last is in another region, without which the volume cannot be used";

/// The log block with the volume's record.
pub(crate) const RECORD_BLOCK: u32 = 1;

/// A region that may be used by this volume.
pub(crate) enum Claim {
    /// The scheme must begin it.
    New(Pair),
    /// It may have committed content.
    Left(Pair),
}

/// How a scheme reads its region. Nothing is written.
pub(crate) trait Look {
    /// Returns the newest durable transaction in a region that is not closed.
    fn newest(&self, header: &RegionHeader, state: &RegionState) -> Result<Tid>;

    /// True when a region that is not closed has committed content that home does not have.
    fn holds_any(&self, header: &RegionHeader, state: &RegionState) -> Result<bool>;
}

/// Returns the memory that the mount was given, or the error that it is missing.
pub(crate) fn memory(about: &About, args: &OpenArgs) -> Result<Arc<dyn Pmem>> {
    args.nvm.clone().ok_or_else(|| {
        SchemeError::Nvm(format!(
            "scheme {} needs some: mount with nvm=FILE (or `stetfs fsck --nvm FILE`)",
            about.name
        ))
    })
}

/// Checks that the region belongs to the volume, or may become its region. Nothing is written.
pub(crate) fn claim(
    about: &'static About,
    args: &OpenArgs,
    area: &JournalArea,
    pmem: &Arc<dyn Pmem>,
    look: &dyn Look,
) -> Result<Claim> {
    let unusable = |why: String| Err(SchemeError::Nvm(why));
    let shown = pmem.describe();
    let found = MemoryFound::read(&**pmem)?;
    let mut raw = vec![0; args.block_size.bytes()];
    if args.log.is_empty() {
        let why = "the volume has no journal to remember the memory in".to_owned();
        return Err(SchemeError::Unusable(why));
    }
    area.read(RECORD_BLOCK, &mut raw)?;
    let ours = VolumeRecord::newest(&raw);
    let ours = if args.has_private_log {
        Some(ours.inspect_err(|_| NO_RECORD.reached())?)
    } else {
        // Without the mark it may be an old record, or a block of JBD2's log.
        None
    };
    if ours.as_ref().is_some_and(|ours| ours.uuid != args.uuid) {
        NO_RECORD.reached();
        return Err(
            Corrupt::NvmPair("the volume's record of its memory is another volume's").into(),
        );
    }
    let needed = ours.as_ref().filter(|ours| ours.state != PairState::Shut);
    let Some(needed) = needed else {
        check_usable(about, args, &**pmem, &found, ours.as_ref(), look)?;
        return Ok(Claim::New(Pair::new(about, args, area, pmem, ours)?));
    };
    let (header, state) = match found {
        MemoryFound::Region(header, state) => (header, state),
        MemoryFound::Damaged(why) => {
            DAMAGED.reached();
            return Err(why.into());
        }
        _ => {
            LOST_REGION.reached();
            return unusable(format!(
                "{shown} holds nothing of scheme {}; {LOST}",
                about.name
            ));
        }
    };
    if header.scheme != about.name || header.uuid != args.uuid {
        LOST_REGION.reached();
        return unusable(format!("{shown} belongs to another volume; {LOST}"));
    }
    if header.epoch != needed.epoch {
        LOST_REGION.reached();
        return unusable(format!(
            "{shown} is a region that the volume had at another time; {LOST}"
        ));
    }
    if needed.size != pmem.size() {
        RESIZED.reached();
        return unusable(format!(
            "{shown} has {} bytes, and the region in it {}; {LOST}",
            pmem.size(),
            needed.size
        ));
    }
    let newest = match state.state {
        PairState::Shut => needed.sequence,
        _ => look.newest(&header, &state)?,
    };
    match needed.check(&state, newest) {
        Ok(()) => {}
        Err(Mismatch::OlderVolume) => {
            OLDER_VOLUME.reached();
            return unusable(format!(
                "{shown} is newer than the volume, which is an older copy: what was brought home \
                    since is missing in it"
            ));
        }
        Err(Mismatch::OlderMemory) => {
            OLDER_REGION.reached();
            return unusable(format!("{shown} is an older copy of its region; {LOST}"));
        }
    }
    if !args.writable {
        READ_ONLY.reached();
        return unusable(format!(
            "{shown} must be recovered, which needs a writable volume"
        ));
    }
    PAIR.reached();
    let record = needed.clone();
    Ok(Claim::Left(Pair::left(
        args, area, pmem, header, state, record, newest,
    )?))
}

/// Checks that memory that the volume does not need may become its region.
fn check_usable(
    about: &About,
    args: &OpenArgs,
    pmem: &dyn Pmem,
    found: &MemoryFound,
    ours: Option<&VolumeRecord>,
    look: &dyn Look,
) -> Result<()> {
    let shown = pmem.describe();
    let may_overwrite = |why: &str| {
        if args.nvm_new {
            OVERWRITTEN.reached();
            Ok(())
        } else {
            FOREIGN.reached();
            Err(SchemeError::Nvm(format!(
                "{shown} {why}: it is left as it is; name an empty file, or say nvm-new to \
                    overwrite it"
            )))
        }
    };
    let usable = |as_what: &'static RecoveryCase| {
        as_what.reached();
        Ok(())
    };
    match found {
        MemoryFound::Making => usable(&BLANK),
        MemoryFound::Nothing if is_zero(pmem)? => usable(&BLANK),
        MemoryFound::Nothing => may_overwrite("is not empty, and holds no region of stetfs's"),
        MemoryFound::Damaged(why) => may_overwrite(&format!("holds a damaged region ({why})")),
        MemoryFound::Older(header) if header.is_closed && header.uuid == args.uuid => usable(&SHUT),
        MemoryFound::Older(_) => {
            OPEN_FULL.reached();
            Err(Corrupt::NvmPairVersion(1).into())
        }
        MemoryFound::Region(header, state) => {
            let is_ours = header.uuid == args.uuid;
            let holds_any = || match (is_ours && header.scheme == about.name, ours) {
                (false, _) => Ok(true),
                // The volume was closed, and the region was not told: it must have nothing newer
                // than the volume.
                (true, Some(ours)) if ours.epoch == header.epoch => {
                    Ok(look.newest(header, state)?.is_after(ours.sequence))
                }
                (true, _) => look.holds_any(header, state),
            };
            match state.state {
                PairState::Shut if is_ours => usable(&SHUT),
                PairState::Shut => may_overwrite("was the region of another volume"),
                _ if holds_any()? => {
                    OPEN_FULL.reached();
                    Err(SchemeError::Nvm(format!(
                        "{shown} holds what another volume, or a copy of this one, has not brought \
                            home yet"
                    )))
                }
                _ => usable(&OPEN_EMPTY),
            }
        }
    }
}

/// The kinds of content of a memory.
enum MemoryFound {
    Region(RegionHeader, RegionState),
    /// A region that is being made.
    Making,
    /// A region of an earlier format.
    Older(LogHeader),
    /// It begins like a region.
    Damaged(Corrupt),
    Nothing,
}

impl MemoryFound {
    fn read(pmem: &dyn Pmem) -> Result<Self> {
        let mut raw = [0; LogHeader::SIZE];
        if pmem.size() < STATE_OFFSETS[1] + usize_as_u64(RegionState::SIZE) {
            return Ok(Self::Nothing);
        }
        pmem.load(0, &mut raw, RECOVERY)?;
        if RegionHeader::is_making(&raw) {
            return Ok(Self::Making);
        }
        if LogHeader::is_one(&raw) {
            let old = LogHeader::decode(&raw);
            return Ok(old.map_or_else(Self::Damaged, Self::Older));
        }
        if !raw.starts_with(&REGION_WORD.to_le_bytes()) {
            return Ok(Self::Nothing);
        }
        let header = match RegionHeader::decode(&raw) {
            Ok(header) => header,
            Err(why) => return Ok(Self::Damaged(why)),
        };
        let mut slots = [[0; RegionState::SIZE]; 2];
        for (slot, at) in slots.iter_mut().zip(STATE_OFFSETS) {
            pmem.load(at, slot, RECOVERY)?;
        }
        Ok(match RegionState::newest(&slots, header.seed()) {
            Ok(state) => Self::Region(header, state),
            Err(why) => Self::Damaged(why),
        })
    }
}

/// True when the memory has nothing but zeros.
fn is_zero(pmem: &dyn Pmem) -> Result<bool> {
    const PIECE: u64 = 1 << 20;
    let mut raw = vec![0; u64_as_usize(PIECE)];
    let mut at = pmem.next_data(0);
    while at < pmem.size() {
        let raw = &mut raw[..u64_as_usize(PIECE.min(pmem.size() - at))];
        pmem.load(at, raw, RECOVERY)?;
        if raw.iter().fold(0, |all, byte| all | byte) != 0 {
            return Ok(false);
        }
        at = pmem.next_data(at + usize_as_u64(raw.len()));
    }
    Ok(true)
}

/// Notes in a region that a transaction is durable, so that recovery does not take it for one in
/// flight if it is damaged later. The note is durable with the next fence at the latest. `seed` is
/// that of the region's header.
pub(crate) fn note_committed(pmem: &dyn Pmem, seed: u32, sequence: Tid) -> Result<()> {
    let word = committed_word(sequence, seed).to_le_bytes();
    let tag = Tag::new(Class::Journal, Cause::Log);
    Ok(pmem.store_nt(COMMITTED_OFFSET, &word, tag)?)
}

/// Returns the newest transaction that is noted as durable; later ones may be durable too.
pub(crate) fn committed(pmem: &dyn Pmem, seed: u32) -> Result<Tid> {
    let word = pmem.load_u64(COMMITTED_OFFSET, RECOVERY)?;
    Ok(committed_of(word, seed)?)
}

/// Returns a number that differs from all epochs before, when these are not known.
pub(crate) fn new_epoch() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    // Nanoseconds since 1970. They wrap in the year 2554.
    let seconds = now.as_secs().wrapping_mul(1_000_000_000);
    seconds.wrapping_add(now.subsec_nanos().into())
}

/// A volume and its region, with the record and the state by which they know each other.
pub(crate) struct Pair {
    pub(crate) pmem: Arc<dyn Pmem>,
    dev: Arc<dyn BlockDev>,
    /// The byte offset of the block with the volume's record.
    block_at: u64,
    block_size: BlockSize,
    pub(crate) header: RegionHeader,
    /// The region was closed with its content (`-o keep-cache`).
    pub(crate) is_kept: bool,
    /// The newest durable transaction.
    newest: AtomicU32,
    now: Mutex<Now>,
}

struct Now {
    volume: VolumeRecord,
    region: RegionState,
}

impl Pair {
    /// Makes a pair whose region has not begun yet. `before` is the volume's record of an earlier
    /// region, which is closed.
    fn new(
        about: &About,
        args: &OpenArgs,
        area: &JournalArea,
        pmem: &Arc<dyn Pmem>,
        before: Option<VolumeRecord>,
    ) -> Result<Self> {
        let header = RegionHeader {
            scheme: about.name.to_owned(),
            uuid: args.uuid,
            epoch: new_epoch(),
        };
        let volume = VolumeRecord {
            scheme: header.scheme.clone(),
            uuid: header.uuid,
            epoch: header.epoch,
            checkpoint: 0,
            // So that this record does not overwrite the one that counts until then.
            count: before.map_or(0, |before| before.count),
            sequence: Tid(0),
            state: PairState::Open,
            size: 0,
            path: Vec::new(),
        };
        let region = RegionState {
            count: 0,
            checkpoint: 0,
            tail: Tail::from_word(0),
            state: PairState::Open,
        };
        Self::left(args, area, pmem, header, region, volume, Tid(0))
    }

    fn left(
        args: &OpenArgs,
        area: &JournalArea,
        pmem: &Arc<dyn Pmem>,
        header: RegionHeader,
        region: RegionState,
        mut volume: VolumeRecord,
        newest: Tid,
    ) -> Result<Self> {
        volume.size = pmem.size();
        let path = pmem
            .path()
            .map(|path| path.as_os_str().as_encoded_bytes().to_vec());
        let fits = |path: &Vec<u8>| path.len() <= VolumeRecord::MOST_PATH && path.starts_with(b"/");
        volume.path = path.filter(fits).unwrap_or_default();
        Ok(Self {
            pmem: pmem.clone(),
            dev: area.dev.clone(),
            block_at: area.offset(RECORD_BLOCK)?,
            block_size: args.block_size,
            header,
            is_kept: region.state == PairState::Kept,
            newest: AtomicU32::new(newest.0),
            now: Mutex::new(Now { volume, region }),
        })
    }

    /// Begins the region and writes the volume's record; durable when it returns. `prepare` stores
    /// the region's content behind header and state. `newest` is the number before that of the
    /// first transaction.
    pub(crate) fn begin(
        &self,
        is_marked: bool,
        tail: Tail,
        newest: Tid,
        prepare: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut now = self.now.lock();
        // Until the first word is stored, nothing in the region counts.
        self.store_word(MAKING_WORD)?;
        prepare()?;
        now.region.count = 1;
        now.region.checkpoint += 1;
        now.region.tail = tail;
        for (n, at) in STATE_OFFSETS.into_iter().enumerate() {
            let raw = if usize_as_u64(n) == now.region.count % 2 {
                now.region.encode(self.header.seed())
            } else {
                [0; RegionState::SIZE]
            };
            self.pmem.store_nt(at, &raw, CONTROL)?;
        }
        self.pmem.store_nt(8, &self.header.encode()[8..], CONTROL)?;
        self.pmem.fence(Cause::Control)?;
        self.store_word(REGION_WORD)?;
        self.newest.store(newest.0, Relaxed);
        now.volume.checkpoint = now.region.checkpoint;
        now.volume.sequence = newest;
        if is_marked {
            self.write_volume(&mut now.volume, Cause::Control)?;
            return Ok(self.dev.flush(Cause::Control)?);
        }
        // Without the mark no other record in the block counts.
        let mut block = vec![0; self.block_size.bytes()];
        now.volume.count += 1;
        let at = now.volume.offset();
        block[at..at + VolumeRecord::SIZE].copy_from_slice(&now.volume.encode());
        Ok(self.dev.write_durable(self.block_at, &[&block], CONTROL)?)
    }

    /// Goes on with a region that was left. A cut at any moment leaves a pair of the same time.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut now = self.now.lock();
        // If only the process ended, the volume's record may still be in a cache alone.
        self.dev.flush(Cause::Recovery)?;
        if is_planted(Bug::MiscountedSlot) {
            now.region.count += 1;
        }
        let was_kept = now.volume.state == PairState::Kept;
        let caught_up = now.volume.checkpoint + u64::from(was_kept);
        now.region.state = if was_kept {
            PairState::Open
        } else {
            PairState::Homing
        };
        now.region.checkpoint = caught_up;
        self.write_region(&mut now.region, Cause::Recovery)?;
        now.volume.state = PairState::Open;
        now.volume.sequence = Tid(self.newest.load(Relaxed));
        now.volume.checkpoint = caught_up + u64::from(!was_kept);
        self.write_volume(&mut now.volume, Cause::Recovery)?;
        self.dev.flush(Cause::Recovery)?;
        if !was_kept {
            now.region.state = PairState::Open;
            now.region.checkpoint = now.volume.checkpoint;
            self.write_region(&mut now.region, Cause::Recovery)?;
        }
        Ok(())
    }

    /// Notes that a transaction is durable.
    pub(crate) fn note_commit(&self, tid: Tid) {
        self.newest.store(tid.0, Relaxed);
    }

    /// Begins a checkpoint, in the region and then in the volume. The caller flushes the volume
    /// before it ends the checkpoint by [`note_in_memory`](Self::note_in_memory).
    pub(crate) fn note_in_volume(&self, cause: Cause) -> Result<()> {
        let mut now = self.now.lock();
        now.region.state = PairState::Homing;
        self.write_region(&mut now.region, cause)?;
        now.volume.checkpoint += 1;
        now.volume.sequence = Tid(self.newest.load(Relaxed));
        self.write_volume(&mut now.volume, cause)
    }

    /// Ends a checkpoint in the region; durable when it returns. Then the region may give up the
    /// blocks that are home.
    pub(crate) fn note_in_memory(&self, cause: Cause) -> Result<()> {
        let mut now = self.now.lock();
        now.region.state = PairState::Open;
        now.region.checkpoint = now.volume.checkpoint;
        self.write_region(&mut now.region, cause)
    }

    /// Returns the tail of the scheme's log.
    pub(crate) fn tail(&self) -> Tail {
        self.now.lock().region.tail
    }

    /// Moves the tail of the scheme's log; durable when it returns.
    pub(crate) fn move_tail(&self, tail: Tail, cause: Cause) -> Result<()> {
        let mut now = self.now.lock();
        now.region.tail = tail;
        self.write_region(&mut now.region, cause)
    }

    /// Closes both, when everything is home or the content is kept; durable when it returns.
    pub(crate) fn close(&self, state: PairState) -> Result<()> {
        let mut now = self.now.lock();
        now.volume.state = state;
        now.volume.sequence = Tid(self.newest.load(Relaxed));
        now.volume.checkpoint += 1;
        self.write_volume(&mut now.volume, Cause::Control)?;
        self.dev.flush(Cause::Control)?;
        now.region.state = state;
        now.region.checkpoint = now.volume.checkpoint;
        self.write_region(&mut now.region, Cause::Control)
    }

    fn write_volume(&self, record: &mut VolumeRecord, cause: Cause) -> Result<()> {
        record.count += 1;
        let tag = Tag::new(Class::Journal, cause);
        let raw = record.encode();
        let at = self.block_at + usize_as_u64(record.offset());
        if u32_as_usize(self.dev.sector_size()) <= raw.len() {
            return Ok(self.dev.write_at(at, &raw, tag)?);
        }
        // Both slots are in one sector: the other one is written back as it is.
        let mut block = vec![0; self.block_size.bytes()];
        self.dev.read_at(self.block_at, &mut block, tag)?;
        let from = record.offset();
        block[from..from + raw.len()].copy_from_slice(&raw);
        Ok(self.dev.write_at(self.block_at, &block, tag)?)
    }

    fn write_region(&self, state: &mut RegionState, cause: Cause) -> Result<()> {
        state.count += if is_planted(Bug::CurrentSlot) { 2 } else { 1 };
        let tag = Tag::new(Class::Journal, cause);
        let raw = state.encode(self.header.seed());
        self.pmem.store_nt(state.offset(), &raw, tag)?;
        Ok(self.pmem.fence(cause)?)
    }

    fn store_word(&self, word: u64) -> Result<()> {
        self.pmem.store_nt(0, &word.to_le_bytes(), CONTROL)?;
        Ok(self.pmem.fence(Cause::Control)?)
    }
}
