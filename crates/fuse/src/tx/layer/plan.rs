//! The rules of what an upper layer of overlayfs changes in the directory below it. The command
//! that lists the changes and the server that makes them both use them.
//!
//! They are those of Linux' `Documentation/filesystems/overlayfs.rst`:
//!
//! - A device 0/0 is a *whiteout*, which removes the name.
//! - A directory that is *opaque* hides the one below.
//! - The contents of any other pair of directories are merged, and the upper one's attributes
//!   count.
//! - Every other upper file replaces what is below.
//!
//! overlayfs keeps its own notes in attributes named `trusted.overlay.*`, or `user.overlay.*` if an
//! ordinary user has mounted it. It is mounted without its options `redirect_dir`, `metacopy` and
//! `index`, so that every upper file is whole.

use stetfs::mode;

/// The directory that holds the layer and its helpers. It is in the directory that is changed.
pub const PLACE: &str = ".stetfs-tx";
/// The layer, in [`PLACE`].
pub const UPPER: &str = "upper";
/// The place for removed directories, in [`PLACE`].
pub const TRASH: &str = "trash";

/// The largest depth of a file in a layer.
pub const DEPTH_MAX: usize = 1000;

/// What a plan is made from: a volume, or a mounted directory.
pub trait Tree {
    /// A file.
    type Node: Clone;
    /// Why it cannot be read.
    type Error;

    /// Returns what is in a directory, except `.` and `..`.
    ///
    /// # Errors
    /// It cannot be read.
    fn children(&self, dir: &Self::Node) -> Result<Vec<Child<Self::Node>>, Self::Error>;

    /// Returns the file of that name; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be looked up.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>, Self::Error>;

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// They cannot be read.
    fn about(&self, node: &Self::Node) -> Result<About, Self::Error>;

    /// Returns the extended attributes of a file, those of overlayfs too.
    ///
    /// # Errors
    /// They cannot be read.
    fn xattrs(&self, node: &Self::Node) -> Result<Vec<Xattr>, Self::Error>;
}

/// A name, and the file that it stands for.
pub type Child<N> = (Vec<u8>, N);

/// The name and the value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Seconds and nanoseconds since 1970.
pub type Moment = (i64, u32);

/// The attributes of a file that a plan needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// Type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Last access.
    pub atime: Moment,
    /// Last change of the content.
    pub mtime: Moment,
}

impl About {
    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        mode::is_dir(self.mode)
    }

    /// Returns whether it is a whiteout, which removes its name.
    pub fn is_whiteout(&self) -> bool {
        self.mode & mode::S_IFMT == mode::S_IFCHR && self.rdev == (0, 0)
    }
}

/// A file with its attributes.
#[derive(Debug, Clone)]
pub struct Found<N> {
    /// The file.
    pub node: N,
    /// Its attributes.
    pub about: About,
}

/// One change.
#[derive(Debug, Clone)]
pub struct Change<N> {
    /// The path of the file, from the directory that is changed.
    pub path: Vec<u8>,
    /// What happens to it.
    pub what: What<N>,
}

/// What happens to a file.
#[derive(Debug, Clone)]
pub enum What<N> {
    /// It is removed; a directory with everything in it.
    Remove {
        /// The directory that it is in.
        dir: N,
        /// The file.
        old: Found<N>,
    },
    /// A file of the layer takes the name.
    Place {
        /// The directory of the layer that it is in.
        upper: N,
        /// The directory that it goes to.
        dir: N,
        /// The file.
        new: Found<N>,
        /// The file that has the name until then; `None` if there is none.
        old: Option<Found<N>>,
    },
    /// It comes with the directory that is placed.
    Inside {
        /// The file.
        new: Found<N>,
    },
    /// A directory that stays gets these attributes.
    Attributes {
        /// The directory.
        node: N,
        /// Its attributes now.
        old: About,
        /// Its new attributes.
        new: About,
        /// The extended attributes to set, and the names of those to remove.
        xattrs: (Vec<Xattr>, Vec<Vec<u8>>),
    },
}

impl<N> What<N> {
    /// Returns whether this changes only a directory's times.
    pub fn is_of_times(&self) -> bool {
        match self {
            Self::Attributes {
                old, new, xattrs, ..
            } => {
                let of = |about: &About| (about.mode, about.uid, about.gid);
                of(old) == of(new) && xattrs.0.is_empty() && xattrs.1.is_empty()
            }
            _ => false,
        }
    }
}

/// The changes of a layer, and what must be removed from the layer before.
#[derive(Debug)]
pub struct Plan<N> {
    /// The changes, in an order in which they can be made.
    pub changes: Vec<Change<N>>,
    /// Attributes of overlayfs to remove: the file of the layer and the name.
    pub marks: Vec<(N, Vec<u8>)>,
    /// Whiteouts to remove, in directories that are moved whole: the directory and the name.
    pub whiteouts: Vec<(N, Vec<u8>)>,
    /// Paths of directories that were changed in the layer and no longer exist below it; and
    /// [`PLACE`], if the layer has it.
    pub conflicts: Vec<Vec<u8>>,
}

/// Why there is no plan.
#[derive(Debug)]
pub enum Error<E> {
    /// This cannot be read.
    Tree(Vec<u8>, E),
    /// Directories lie too deep.
    TooDeep(Vec<u8>),
}

/// Plans what the layer `upper` changes in `dir`.
///
/// # Errors
/// See [`Error`].
pub fn plan<T: Tree>(
    tree: &T,
    upper: &T::Node,
    dir: &T::Node,
) -> Result<Plan<T::Node>, Error<T::Error>> {
    let mut planner = Planner {
        tree,
        path: Vec::new(),
        depth: 0,
        plan: Plan {
            changes: Vec::new(),
            marks: Vec::new(),
            whiteouts: Vec::new(),
            conflicts: Vec::new(),
        },
    };
    let (upper, dir) = (planner.found(upper.clone())?, planner.found(dir.clone())?);
    let (_, own) = planner.marks(&upper.node)?;
    planner.merge(&upper, &dir, own)?;
    Ok(planner.plan)
}

/// overlayfs's own notes about a file.
#[derive(Default)]
struct Marks {
    is_opaque: bool,
    /// It is a changed copy of a file below.
    has_origin: bool,
}

/// Returns the name behind overlayfs's prefix; `None` for an attribute that is not overlayfs's own.
fn mark(name: &[u8]) -> Option<&[u8]> {
    let is_of = |prefix: &&[u8]| name.starts_with(prefix);
    let prefixes: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
    let prefix = prefixes.iter().find(|prefix| is_of(prefix))?;
    name.get(prefix.len()..)
}

struct Planner<'a, T: Tree> {
    tree: &'a T,
    path: Vec<u8>,
    depth: usize,
    plan: Plan<T::Node>,
}

type Answer<T, V> = Result<V, Error<<T as Tree>::Error>>;

impl<T: Tree> Planner<'_, T> {
    fn err<V>(&self, result: Result<V, T::Error>) -> Answer<T, V> {
        result.map_err(|e| Error::Tree(self.path.clone(), e))
    }

    /// Calls `act` with the path extended by `name`.
    fn at<V>(&mut self, name: &[u8], act: impl FnOnce(&mut Self) -> Answer<T, V>) -> Answer<T, V> {
        if self.depth >= DEPTH_MAX {
            return Err(Error::TooDeep(self.path.clone()));
        }
        let len = self.path.len();
        if len > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        self.depth += 1;
        let done = act(self);
        self.depth -= 1;
        self.path.truncate(len);
        done
    }

    fn change(&mut self, what: What<T::Node>) {
        let path = self.path.clone();
        self.plan.changes.push(Change { path, what });
    }

    fn found(&self, node: T::Node) -> Answer<T, Found<T::Node>> {
        let about = self.err(self.tree.about(&node))?;
        Ok(Found { node, about })
    }

    fn children(&self, dir: &T::Node) -> Answer<T, Vec<Child<T::Node>>> {
        let mut children = self.err(self.tree.children(dir))?;
        children.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(children)
    }

    /// Returns overlayfs's notes about a file of the layer, and its other attributes.
    fn marks(&mut self, node: &T::Node) -> Answer<T, (Marks, Vec<Xattr>)> {
        let (mut marks, mut own) = (Marks::default(), Vec::new());
        for (name, value) in self.err(self.tree.xattrs(node))? {
            match mark(&name) {
                None => {
                    own.push((name, value));
                    continue;
                }
                Some(b"opaque") => marks.is_opaque = value == b"y",
                Some(b"origin") => marks.has_origin = true,
                Some(_) => {}
            }
            self.plan.marks.push((node.clone(), name));
        }
        Ok((marks, own))
    }

    /// Plans the changes in a directory that stays, and of its attributes.
    fn merge(
        &mut self,
        upper: &Found<T::Node>,
        dir: &Found<T::Node>,
        own: Vec<Xattr>,
    ) -> Answer<T, ()> {
        for (name, node) in self.children(&upper.node)? {
            self.at(&name, |p| {
                if p.depth == 1 && name == PLACE.as_bytes() {
                    p.plan.conflicts.push(name.clone());
                    return Ok(());
                }
                let new = p.found(node)?;
                p.entry(&upper.node, new, &dir.node, &name)
            })?;
        }
        let old = self.err(self.tree.xattrs(&dir.node))?;
        let is_new = |(name, value): &Xattr| !old.iter().any(|(n, v)| (n, v) == (name, value));
        let is_gone = |name: &Vec<u8>| !own.iter().any(|(n, _)| n == name);
        let gone = old.iter().map(|(name, _)| name.clone()).filter(is_gone);
        let gone = gone.filter(|name| mark(name).is_none()).collect();
        let set = own.iter().filter(|x| is_new(x)).cloned().collect();
        let what = What::Attributes {
            node: dir.node.clone(),
            old: dir.about,
            new: upper.about,
            xattrs: (set, gone),
        };
        if !what.is_of_times() || upper.about.mtime != dir.about.mtime {
            self.change(what);
        }
        Ok(())
    }

    /// Plans what a name in the layer changes in a directory that stays.
    fn entry(
        &mut self,
        upper: &T::Node,
        new: Found<T::Node>,
        dir: &T::Node,
        name: &[u8],
    ) -> Answer<T, ()> {
        let old = self.err(self.tree.child(dir, name))?;
        let old = old.map(|node| self.found(node)).transpose()?;
        let dir = dir.clone();
        if new.about.is_whiteout() {
            if let Some(old) = old {
                self.change(What::Remove { dir, old });
            }
            return Ok(());
        }
        let (marks, own) = self.marks(&new.node)?;
        let is_merged = new.about.is_dir() && !marks.is_opaque;
        match old {
            Some(old) if is_merged && old.about.is_dir() => self.merge(&new, &old, own),
            // (A renamed file is a copy too; a directory cannot be renamed.)
            None if is_merged && marks.has_origin => {
                self.plan.conflicts.push(self.path.clone());
                Ok(())
            }
            old => {
                let upper = upper.clone();
                self.change(What::Place {
                    upper,
                    dir,
                    new: new.clone(),
                    old,
                });
                self.inside(&new)
            }
        }
    }

    /// Plans what comes with a directory that is moved whole.
    fn inside(&mut self, dir: &Found<T::Node>) -> Answer<T, ()> {
        if !dir.about.is_dir() {
            return Ok(());
        }
        for (name, node) in self.children(&dir.node)? {
            self.at(&name, |p| {
                let new = p.found(node)?;
                if new.about.is_whiteout() {
                    p.plan.whiteouts.push((dir.node.clone(), name.clone()));
                    return Ok(());
                }
                p.marks(&new.node)?;
                p.change(What::Inside { new: new.clone() });
                p.inside(&new)
            })?;
        }
        Ok(())
    }
}

/// Returns the changes to show. A directory's times change with its content, so they are left out.
pub fn listed<N>(changes: &[Change<N>]) -> impl Iterator<Item = &Change<N>> {
    let is_of_content = |at: usize, of: &Change<N>| {
        let is_below = |other: &Change<N>| {
            of.path.is_empty()
                || other.path.starts_with(&of.path) && other.path.get(of.path.len()) == Some(&b'/')
        };
        // The changes below a directory are just before its own.
        at > 0 && is_below(&changes[at - 1])
    };
    let is_listed = move |(at, change): &(usize, &Change<N>)| {
        !change.what.is_of_times() || !is_of_content(*at, change)
    };
    changes.iter().enumerate().filter(is_listed).map(|(_, c)| c)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
