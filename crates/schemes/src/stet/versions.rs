//! The newest committed version of each block that the log has something of.

use stetfs_format::{BlockNo, InodeNo, Tid};
use stetfs_media::{BlockRef, Class};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::Ranges;

use crate::parts::index::{Changing, Indexed};

/// Where a version's content is.
#[derive(Clone)]
pub(super) enum Content {
    /// In memory.
    Here(BlockRef),
    /// In the log, which is in memory: all of it in the chunk at this position.
    Logged(u64),
    /// Home has it.
    Home,
}

/// A block's newest version.
pub(super) struct Version {
    pub(super) class: Class,
    /// The file that it belongs to, for data.
    pub(super) ino: Option<InodeNo>,
    content: Content,
    /// Where it differs from home. No bytes: it is home.
    pending: Ranges,
    /// The first transaction whose bytes home has not got: replayed from there on, home becomes
    /// this version.
    oldest: Tid,
    /// The last one that has bytes of it.
    newest: Tid,
    /// Transactions that changed it since it was home.
    pub(super) changes: u16,
    /// A checkpoint is writing it home: what was changed since, and by which transaction first.
    going: Option<(Ranges, Tid)>,
}

impl Indexed for Version {
    fn is_held(&self) -> bool {
        !self.pending.is_empty()
    }

    fn is_here(&self) -> bool {
        matches!(self.content, Content::Here(_))
    }
}

impl Version {
    /// A block of which the log has nothing yet.
    pub(super) fn new(class: Class, ino: Option<InodeNo>, content: Content, tid: Tid) -> Self {
        Self {
            class,
            ino,
            content,
            pending: Ranges::new(),
            oldest: tid,
            newest: tid,
            changes: 0,
            going: None,
        }
    }

    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// Whoever has its content is the only one from now on.
    pub(super) fn forget_content(&mut self) {
        self.content = Content::Home;
    }

    /// Where it differs from home, if a record may carry all of that, so that the log needs nothing
    /// older of it: not while it is on its way.
    pub(super) fn portable(&self) -> Option<&Ranges> {
        self.going.is_none().then_some(&self.pending)
    }

    /// The first transaction that a replay needs for it.
    pub(super) fn oldest(&self) -> Tid {
        self.oldest
    }

    /// Transaction `tid` gave it this content, which differs in these bytes, and which it has
    /// logged. With `carried` it has logged all that home has not got.
    pub(super) fn change(&mut self, tid: Tid, content: Content, changed: &Ranges, carried: bool) {
        self.content = content;
        self.note(tid, changed);
        if carried {
            self.oldest = tid;
        }
    }

    fn note(&mut self, tid: Tid, changed: &Ranges) {
        if self.pending.is_empty() {
            self.oldest = tid;
            self.changes = 0;
        }
        self.pending.add_all(changed);
        self.newest = tid;
        self.changes = self.changes.saturating_add(1);
        if let Some((since, first)) = &mut self.going {
            if since.is_empty() {
                *first = tid;
            }
            since.add_all(changed);
        }
    }
}

/// A version on its way home.
pub(super) struct Due {
    pub(super) home: BlockNo,
    pub(super) class: Class,
    pub(super) content: Content,
    /// What home has not got.
    pub(super) pending: Ranges,
}

/// The versions that are held, and due. They are on their way home from now on.
pub(super) fn take_due(
    index: &mut Changing<'_, Version>,
    is_due: impl Fn(&Version) -> bool,
) -> Vec<Due> {
    let homes: Vec<BlockNo> = index
        .iter()
        .filter(|(_, version)| version.is_held() && is_due(version))
        .map(|(home, _)| *home)
        .collect();
    let mut due = Vec::with_capacity(homes.len());
    for home in homes {
        index.change(&home, |version| {
            version.going = Some((Ranges::new(), version.newest));
            due.push(Due {
                home,
                class: version.class,
                content: version.content.clone(),
                pending: version.pending.clone(),
            });
        });
    }
    due
}

/// These versions are durable at home, as they were when they were taken. `learn` hears how often
/// each was changed before.
pub(super) fn are_home(
    index: &mut Changing<'_, Version>,
    due: &[Due],
    mut learn: impl FnMut(Option<InodeNo>, u16),
) {
    for block in due {
        index.change(&block.home, |version| {
            // A block that was freed meanwhile and has content again never left.
            if let Some((since, first)) = version.going.take() {
                learn(version.ino, version.changes);
                if !is_planted(Bug::LostChange) {
                    version.pending = since;
                    version.oldest = first;
                } else {
                    version.pending = Ranges::new();
                }
                version.changes = u16::from(version.is_held());
                if !version.is_held() {
                    version.content = Content::Home;
                }
            }
        });
    }
}

/// They are not home: the log must keep what it has of them.
pub(super) fn stay(index: &mut Changing<'_, Version>, due: &[Due]) {
    for block in due {
        index.change(&block.home, |version| version.going = None);
    }
}

/// The first transaction that a replay needs, for any block; `None`: none.
pub(super) fn first_needed(index: &Changing<'_, Version>) -> Option<Tid> {
    let held = index.values().filter(|version| version.is_held());
    held.map(Version::oldest)
        .reduce(|a, b| match a.is_after(b) {
            true => b,
            false => a,
        })
}

/// The log begins with transaction `first` now: forgets what it has nothing of any more.
pub(super) fn forget_before(index: &mut Changing<'_, Version>, first: Tid) {
    let gone: Vec<BlockNo> = index
        .iter()
        .filter(|(_, version)| !version.is_held() && first.is_after(version.newest))
        .map(|(home, _)| *home)
        .collect();
    gone.iter().for_each(|home| {
        index.remove(home);
    });
}
