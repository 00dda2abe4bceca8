//! Container images: which layers an image has, in a directory or in an archive.
//!
//! Two forms are known. An *image layout* is a directory with the file `oci-layout`, or an archive
//! of it, as `skopeo copy`, `podman save --format oci-archive`, `buildah push` and Docker since
//! version 25 make it. An index names manifests, for several platforms perhaps, and a manifest
//! names layers by their digests. Source: OCI image format specification 1.1 (image-layout.md,
//! image-index.md, manifest.md, descriptor.md).
//!
//! An archive of `docker save` before that has the file `manifest.json`, which names images and
//! their layers. Source: Docker image specification 1.2.
//!
//! A layer must have the digest by which it is named.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::str::FromStr;

use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256, Sha512};
use stetfs_format::width::usize_as_u64;

use super::packed::{CHUNK, Spool};
use crate::failure::{Failure, Result};
use crate::place::join;
use crate::tree::{FileKind, Item, Source, Tree};

/// The longest description: more than any registry takes.
const DESCRIPTION_MAX: u64 = 16 << 20;
/// How deep indexes may be nested.
const INDEXES_MAX: u32 = 4;

const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// The annotations that name an image, the longer one first: `docker.io/library/debian:12`, `12`.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];
/// What a name may leave out.
const PREFIXES: [&str; 3] = ["", "docker.io/library/", "docker.io/"];

/// Which image is meant, if there are several.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Which {
    /// Which container image is taken, of several
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// For which platform, of a container image for several: OS/ARCHITECTURE[/VARIANT] [default:
    /// this machine's]
    #[arg(long)]
    platform: Option<Platform>,
}

impl Which {
    /// True if every image fits.
    pub(crate) fn is_any(&self) -> bool {
        self.tag.is_none() && self.platform.is_none()
    }

    /// Fails if one of several images is meant, where there is none.
    pub(super) fn check_any(&self) -> Result<()> {
        if self.is_any() {
            return Ok(());
        }
        Err(Failure::new("is no container image").advise("leave out --tag and --platform"))
    }

    /// Leaves those that have the name.
    fn named<T: Named>(&self, all: Vec<T>) -> Result<Vec<T>> {
        let mut known: Vec<String> = Vec::new();
        for one in &all {
            known.extend(one.names().first().map(|name| (*name).to_owned()));
        }
        known.sort();
        known.dedup();
        let list = known.join(", ");
        let Some(wanted) = &self.tag else {
            if known.len() > 1 {
                return Err(Failure::new(format!("holds several images: {list}"))
                    .advise("say which one: --tag NAME"));
            }
            return Ok(all);
        };
        let is_it = |name: &str| {
            PREFIXES
                .iter()
                .any(|p| name.strip_prefix(p) == Some(wanted))
        };
        let left: Vec<T> = all
            .into_iter()
            .filter(|one| one.names().into_iter().any(is_it))
            .collect();
        if !left.is_empty() {
            return Ok(left);
        }
        Err(Failure::new(if known.is_empty() {
            format!("names no image, and so none is {wanted}")
        } else {
            format!("holds no image {wanted}; it holds {list}")
        }))
    }
}

/// What may have names, the most exact one first.
trait Named {
    fn names(&self) -> Vec<&str>;
}

/// What an image runs on.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// This machine, in Go's words.
    fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }
    }

    /// Returns whether an image of this platform is one of `wanted`.
    fn is(&self, wanted: &Self) -> bool {
        self.os == wanted.os
            && self.architecture == wanted.architecture
            && (wanted.variant.is_none() || self.variant == wanted.variant)
    }

    /// True for what builders keep in an index beside the images, such as attestations.
    fn is_none(&self) -> bool {
        self.os == "unknown"
    }

    fn words(&self) -> String {
        let parts = [
            Some(&self.os),
            Some(&self.architecture),
            self.variant.as_ref(),
        ];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        parts.join("/")
    }
}

impl FromStr for Platform {
    type Err = String;

    /// Reads `OS/ARCHITECTURE[/VARIANT]`, or the architecture alone.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match *parts {
            [architecture] => ("linux", architecture, None),
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => ("", "", None),
        };
        if os.is_empty() || architecture.is_empty() || variant == Some("") {
            return Err("it is written OS/ARCHITECTURE[/VARIANT], such as linux/arm64".to_owned());
        }
        Ok(Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        })
    }
}

/// What says that this is an image layout.
#[derive(Deserialize)]
struct Layout {
    #[serde(rename = "imageLayoutVersion")]
    _version: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Named for Descriptor {
    fn names(&self) -> Vec<&str> {
        let names = NAMES.iter().filter_map(|key| self.annotations.get(*key));
        names.map(String::as_str).collect()
    }
}

impl Descriptor {
    fn is_one_of(&self, types: &[&str]) -> bool {
        types.contains(&self.media_type.as_str())
    }
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

/// An image of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Named for Saved {
    fn names(&self) -> Vec<&str> {
        let tags = self.repo_tags.iter().flatten();
        tags.map(String::as_str).collect()
    }
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// Where an image may be: a directory, or an archive that was opened.
pub(super) struct Inside<'a> {
    tree: &'a dyn Tree,
    root: &'a [u8],
}

impl<'a> Inside<'a> {
    pub(super) fn of(tree: &'a dyn Tree, root: &'a [u8]) -> Self {
        Self { tree, root }
    }

    /// Returns the file of a name; `None` if there is none.
    fn file(&self, name: &str) -> Result<Option<Box<dyn Item + '_>>> {
        let found = self.tree.at(&join(self.root, name.as_bytes()), true)?;
        let is_file = |item: &dyn Item| Ok::<_, Failure>(item.meta()?.kind == FileKind::File);
        Ok(match found {
            Some(item) if is_file(&*item)? => Some(item),
            _ => None,
        })
    }

    /// Reads a description; `None` if there is none, or it does not say what it should.
    fn description<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(item) = self.file(name)? else {
            return Ok(None);
        };
        if item.meta()?.size > DESCRIPTION_MAX {
            return Ok(None);
        }
        Ok(serde_json::from_slice(&whole(&*item)?).ok())
    }

    /// Returns what a descriptor names, whose digest was checked.
    fn blob(&self, named: &Descriptor) -> Result<Box<dyn Item + '_>> {
        let path = blob_path(&named.digest)?;
        let item = self.file(&path)?;
        let item = item.ok_or_else(|| Failure::new(format!("{path}: is not in the image")))?;
        if item.meta()?.size != named.size {
            let words = format!("{path}: has not the size of {} bytes", named.size);
            return Err(Failure::new(words));
        }
        check_digest(&named.digest, Reading::of(&*item)?).map_err(|e| e.context(path))?;
        Ok(item)
    }

    fn described<T: DeserializeOwned>(&self, named: &Descriptor) -> Result<T> {
        if named.size > DESCRIPTION_MAX {
            return Err(Failure::new(format!("{} is too long", named.digest)));
        }
        let bytes = whole(&*self.blob(named)?)?;
        let read = serde_json::from_slice(&bytes);
        read.map_err(|e| Failure::new(format!("{}: {e}", named.digest)))
    }
}

/// Returns the layers of the image that is meant, the lowest first; `None` if there is no image.
pub(super) fn layers(
    inside: &Inside<'_>,
    spool: &Spool,
    which: &Which,
) -> Result<Option<Vec<File>>> {
    if inside.description::<Layout>("oci-layout")?.is_some() {
        let index = inside.description("index.json")?;
        let index = index.ok_or_else(|| {
            Failure::new("has the file oci-layout of a container image, and no index.json of one")
        })?;
        return of_layout(inside, index, spool, which).map(Some);
    }
    match inside.description::<Vec<Saved>>("manifest.json")? {
        Some(saved) if !saved.is_empty() => of_saved(inside, saved, spool, which).map(Some),
        _ => Ok(None),
    }
}

fn of_layout(inside: &Inside<'_>, index: Index, spool: &Spool, which: &Which) -> Result<Vec<File>> {
    let is_image = |d: &Descriptor| d.is_one_of(&INDEXES) || d.is_one_of(&MANIFESTS);
    let images = index.manifests.into_iter().filter(is_image).collect();
    let images = which.named(images)?;
    let mut chosen = of_platform(images, which)?;
    let mut depth = 0;
    while chosen.is_one_of(&INDEXES) {
        depth += 1;
        if depth > INDEXES_MAX {
            return Err(Failure::new("its indexes are nested too deep"));
        }
        let index: Index = inside.described(&chosen)?;
        let images = index.manifests.into_iter().filter(is_image).collect();
        chosen = of_platform(images, which)?;
    }
    let manifest: Manifest = inside.described(&chosen)?;
    unpack(&manifest.layers, |layer, what| {
        check_type(&layer.media_type)?;
        let item = inside.blob(layer)?;
        spool.unpacked(Reading::of(&*item)?, Some(layer.size), what)
    })
}

/// Returns the first of the images for the platform that is meant. If none is named, the only image
/// there is will do.
fn of_platform(mut images: Vec<Descriptor>, which: &Which) -> Result<Descriptor> {
    images.retain(|image| !image.platform.as_ref().is_some_and(Platform::is_none));
    if let (None, [_]) = (&which.platform, &*images) {
        return Ok(images.remove(0));
    }
    let wanted = which.platform.clone().unwrap_or_else(Platform::here);
    let fits = |image: &Descriptor| image.platform.as_ref().is_none_or(|p| p.is(&wanted));
    if let Some(at) = images.iter().position(fits) {
        return Ok(images.swap_remove(at));
    }
    let platforms = images.iter().filter_map(|image| image.platform.as_ref());
    let mut platforms: Vec<String> = platforms.map(Platform::words).collect();
    platforms.sort();
    platforms.dedup();
    let wanted = wanted.words();
    Err(if platforms.is_empty() {
        Failure::new("holds no container image")
    } else {
        let list = platforms.join(", ");
        Failure::new(format!(
            "holds no image for {wanted}; it holds some for {list}"
        ))
        .advise("say which one: --platform OS/ARCHITECTURE")
    })
}

fn check_type(media_type: &str) -> Result<()> {
    if media_type.ends_with("+encrypted") {
        return Err(Failure::new("its layers are encrypted").advise("decrypt it first"));
    }
    if !media_type.contains(".tar") {
        return Err(Failure::new(format!(
            "is not the image of a container: it has a layer of the type {media_type}"
        )));
    }
    Ok(())
}

fn of_saved(
    inside: &Inside<'_>,
    saved: Vec<Saved>,
    spool: &Spool,
    which: &Which,
) -> Result<Vec<File>> {
    let saved = which.named(saved)?;
    let Some(image) = saved.into_iter().next() else {
        return Err(Failure::new("holds no container image"));
    };
    let gone = |name: &str| Failure::new(format!("{name}: is not in the image"));
    let config: Option<Config> = inside.description(&image.config)?;
    let digests = config.ok_or_else(|| gone(&image.config))?.rootfs.diff_ids;
    let all = image.layers.len();
    if digests.len() != all {
        return Err(Failure::new(format!(
            "has {all} layers, and digests of {}",
            digests.len()
        )));
    }
    let layers: Vec<_> = image.layers.iter().zip(&digests).collect();
    unpack(&layers, |(name, digest), what| {
        let item = inside.file(name)?.ok_or_else(|| gone(name))?;
        let mut layer = spool.unpacked(Reading::of(&*item)?, Some(item.meta()?.size), what)?;
        layer.rewind()?;
        check_digest(digest, &layer)?;
        Ok(layer)
    })
}

/// Unpacks the layers, each of which is called what it is.
fn unpack<T>(layers: &[T], one: impl Fn(&T, &str) -> Result<File>) -> Result<Vec<File>> {
    let all = layers.len();
    let unpacked = layers.iter().zip(1..).map(|(layer, n)| {
        let what = format!("layer {n} of {all}");
        one(layer, &what).map_err(|e| e.context(what))
    });
    unpacked.collect()
}

/// Returns where the layout has the content of a digest.
fn blob_path(digest: &str) -> Result<String> {
    let (algorithm, encoded) = digest.split_once(':').unwrap_or_default();
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let len = match algorithm {
        "sha256" => 64,
        "sha512" => 128,
        _ => 0,
    };
    if len == 0 || encoded.len() != len || !encoded.chars().all(is_hex) {
        return Err(Failure::new(format!(
            "{digest}: is no digest that is known here"
        )));
    }
    Ok(format!("blobs/{algorithm}/{encoded}"))
}

/// Fails if what is read has another digest.
fn check_digest(expected: &str, from: impl Read) -> Result<()> {
    blob_path(expected)?;
    let found = if expected.starts_with("sha256:") {
        format!("sha256:{}", digest_of::<Sha256>(from)?)
    } else {
        format!("sha512:{}", digest_of::<Sha512>(from)?)
    };
    if found == expected {
        return Ok(());
    }
    Err(Failure::new(format!(
        "is damaged: its digest is {found}, not {expected}"
    )))
}

fn digest_of<D: Digest>(mut from: impl Read) -> Result<String> {
    let mut digest = D::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk)? {
            0 => break,
            n => digest.update(&chunk[..n]),
        }
    }
    let bytes = digest.finalize();
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn whole(item: &dyn Item) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Reading::of(item)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file of a tree, read from its beginning to its end.
struct Reading<'a> {
    source: Box<dyn Source + 'a>,
    at: u64,
}

impl<'a> Reading<'a> {
    fn of(item: &'a dyn Item) -> Result<Self> {
        let source = item.open()?;
        Ok(Self { source, at: 0 })
    }
}

impl Read for Reading<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(self.at, out);
        let n = n.map_err(|e| io::Error::other(e.to_string()))?;
        self.at += usize_as_u64(n);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_read_and_compared() {
        let read = |text: &str| text.parse::<Platform>();
        let arm = read("linux/arm64").unwrap();
        assert_eq!(read("arm64").unwrap(), arm);
        assert!(read("linux/arm64/v8").unwrap().is(&arm));
        assert!(!arm.is(&read("linux/arm64/v8").unwrap()));
        for wrong in ["", "/", "linux/", "a/b/", "a/b/c/d"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_digest_is_no_path() {
        for wrong in [
            "sha256:../../etc/passwd",
            "../x:00",
            "sha256:",
            "sha256",
            &format!("sha256:{}", "A".repeat(64)),
            &format!("md5:{}", "a".repeat(32)),
        ] {
            assert!(blob_path(wrong).is_err(), "{wrong}");
        }
        assert!(blob_path(&format!("sha512:{}", "a".repeat(128))).is_ok());
    }
}
