//! Looks for the fewest further syncs that would prevent failing states, or finds that no sync
//! would.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::call::{Call, Recording, What};
use crate::effect::{Arrangement, Set};
use crate::model::Model;
use crate::numbers::without_numbers;
use crate::states::Cut;
use crate::tree::Object;

/// A sync that a program does not make: the call that it follows, and its object.
pub type Point = (usize, Object);

/// At most this many syncs are tried together.
const AT_ONCE: usize = 3;

/// At most this many places for a sync are tried.
const PLACES: usize = 8;

/// Why no sync can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Helpless {
    /// Even a sync after every call would not help: the states come before a sync could have ended.
    NoSync,
    /// A sync after every call would help, but no set of up to [`AT_ONCE`] that was tried does.
    ManySyncs,
}

/// Syncs that together help.
pub type Syncs = Vec<Place>;

/// A place for a sync, or several that are alike.
#[derive(Clone, Debug)]
pub struct Place {
    /// The point that is shown.
    shown: Point,
    /// All points.
    points: Vec<Point>,
}

impl Place {
    /// A place with one point.
    pub fn one(point: Point) -> Self {
        let points = vec![point];
        Self {
            shown: point,
            points,
        }
    }

    /// A place after each call that equals the call of `point` except for numbers in its name, as
    /// in a program's loop.
    pub fn alike(recording: &Recording, point: Point) -> Self {
        let kind = |(call, object): Point| {
            let text = recording.calls[call].text();
            let verb = text.split(['(', ' ']).next().unwrap_or_default();
            let (path, of) = (
                &recording.calls[call].path,
                path_of(recording, call, object),
            );
            without_numbers(&format!("{verb} {path} {of}"))
        };
        let wanted = kind(point);
        let all = recording.calls.iter().enumerate();
        let all = all.flat_map(|(number, call)| {
            let objects = made_durable_by(&call.what).into_iter();
            objects.map(move |object| (number, object))
        });
        Self {
            shown: point,
            points: all.filter(|point| kind(*point) == wanted).collect(),
        }
    }

    /// Returns the place in words.
    pub fn text(&self, recording: &Recording) -> String {
        let (call, object) = self.shown;
        let (path, text) = (
            path_of(recording, call, object),
            recording.calls[call].text(),
        );
        let more = match self.points.len() {
            0 | 1 => String::new(),
            n => format!(", and so after each of {n} calls like it"),
        };
        format!("fsync of {path} after call {}, {text}{more}", call + 1)
    }
}

/// Returns the fewest syncs that prevent these states under a model. Syncs of the lost objects are
/// tried, those of the first state's losses first.
///
/// # Errors
/// There are none.
pub fn remedy(recording: &Recording, model: Model, states: &[Cut]) -> Result<Syncs, Helpless> {
    let arrangement = model.arrange(recording);
    let mut places: Vec<Point> = Vec::new();
    for cut in states {
        for point in last_lost(&arrangement, cut) {
            if places.len() < PLACES && !places.contains(&point) {
                places.push(point);
            }
        }
    }
    let helps = |tried: &[&Place]| {
        let points = tried.iter().flat_map(|place| place.points.iter().copied());
        let points: BTreeSet<Point> = points.collect();
        keeps_away(recording, model, states, &|call| {
            let of_call = points.range((call, Object(0))..=(call, Object(u32::MAX)));
            of_call.map(|(_, object)| fsync(*object)).collect()
        })
    };
    let single: Vec<Place> = places.iter().map(|point| Place::one(*point)).collect();
    let mut alike: Vec<Place> = Vec::new();
    for point in &places {
        // Points that are alike are one place.
        if !alike.iter().any(|place| place.points.contains(point)) {
            alike.push(Place::alike(recording, *point));
        }
    }
    for places in [single, alike] {
        for many in 1..=AT_ONCE {
            let found = sets(&places, many, &mut Vec::new(), &helps);
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }
    let by_many = keeps_away(recording, model, states, &|_| vec![What::Sync]);
    Err(if by_many {
        Helpless::ManySyncs
    } else {
        Helpless::NoSync
    })
}

/// Returns for each object with a loss of its own the last call of such a loss.
fn last_lost(arrangement: &Arrangement, cut: &Cut) -> Vec<Point> {
    let mut last: BTreeMap<Object, usize> = BTreeMap::new();
    for n in cut.lost_first(arrangement) {
        let effect = &arrangement.effects[n];
        for object in effect.change.objects() {
            last.insert(object, effect.call);
        }
    }
    last.into_iter()
        .map(|(object, call)| (call, object))
        .collect()
}

/// Returns the first set of this many places, besides those in `chosen`, that helps.
fn sets<'p>(
    places: &'p [Place],
    many: usize,
    chosen: &mut Vec<&'p Place>,
    helps: &dyn Fn(&[&Place]) -> bool,
) -> Option<Syncs> {
    if many == 0 {
        let found = || chosen.iter().map(|place| (*place).clone()).collect();
        return helps(chosen).then(found);
    }
    for (n, place) in places.iter().enumerate() {
        chosen.push(place);
        let found = sets(&places[n + 1..], many - 1, chosen, helps);
        if found.is_some() {
            return found;
        }
        chosen.pop();
    }
    None
}

/// True if none of these states can be left by a program that makes these syncs after its calls.
fn keeps_away(
    recording: &Recording,
    model: Model,
    states: &[Cut],
    after: &dyn Fn(usize) -> Vec<What>,
) -> bool {
    let (with, places) = with_syncs(recording, after);
    let arrangement = model.arrange(&with);
    let mut must = Set::none(arrangement.effects.len());
    let mut durable = arrangement.durable.iter();
    let mut looked_at = 0;
    let mut states: Vec<&Cut> = states.iter().collect();
    states.sort_by_key(|cut| cut.calls);
    states.iter().all(|cut| {
        // The power fails as soon as the call has returned, so a sync after the call comes too
        // late.
        let calls = cut.calls.checked_sub(1).map_or(0, |call| places[call] + 1);
        for more in durable.by_ref().take(calls + 1 - looked_at) {
            more.iter().for_each(|n| must.insert(*n));
        }
        looked_at = calls + 1;
        !must.is_in(&cut.there)
    })
}

fn fsync(object: Object) -> What {
    What::Fsync {
        object,
        datasync: false,
    }
}

/// Returns the recording with the syncs of a place added.
pub(crate) fn with_place(recording: &Recording, place: &Place) -> Recording {
    let after = |call: usize| {
        let points = place.points.iter().filter(|(of, _)| *of == call);
        points.map(|(_, object)| fsync(*object)).collect()
    };
    with_syncs(recording, &after).0
}

/// Returns the recording with a sync of everything after each call.
pub(crate) fn with_all(recording: &Recording) -> Recording {
    with_syncs(recording, &|_| vec![What::Sync]).0
}

/// Returns the recording with syncs added after its calls, and the new positions of its calls.
fn with_syncs(
    recording: &Recording,
    after: &dyn Fn(usize) -> Vec<What>,
) -> (Recording, Vec<usize>) {
    let (mut calls, mut places) = (Vec::new(), Vec::new());
    for (number, call) in recording.calls.iter().enumerate() {
        places.push(calls.len());
        calls.push(call.clone());
        calls.extend(after(number).into_iter().map(|what| Call {
            what,
            ..call.clone()
        }));
    }
    let with = Recording {
        before: recording.before.clone(),
        calls,
        processes: recording.processes.clone(),
        has_groups: recording.has_groups,
    };
    (with, places)
}

/// Returns the objects that must be synced to make a call durable.
pub(crate) fn made_durable_by(what: &What) -> Vec<Object> {
    match what {
        What::Make { slot, .. } | What::Link { slot, .. } | What::Remove { slot, .. } => {
            vec![slot.dir]
        }
        What::Rename {
            from: (from, _),
            to: (to, _),
            ..
        } if from.dir != to.dir => vec![from.dir, to.dir],
        What::Rename { to: (to, _), .. } => vec![to.dir],
        What::Write { file, .. } | What::Zero { file, .. } | What::Resize { file, .. } => {
            vec![*file]
        }
        What::Set { object, .. } | What::Unnamed { object, .. } => vec![*object],
        What::Close { .. }
        | What::Fsync { .. }
        | What::Group { .. }
        | What::Sync
        | What::Mark { .. } => Vec::new(),
    }
}

/// Returns the path of an object in a call: of the file, or of the name's directory.
pub fn path_of(recording: &Recording, call: usize, object: Object) -> String {
    let call = &recording.calls[call];
    let above = |path: &str| match path.rsplit_once('/') {
        Some((dir, _)) => dir.to_owned(),
        None => ".".to_owned(),
    };
    match &call.what {
        What::Rename { to, to_path, .. } if to.0.dir == object => above(to_path),
        What::Rename { from, .. } if from.0.dir == object => above(&call.path),
        What::Make { slot, .. } | What::Link { slot, .. } | What::Remove { slot, .. }
            if slot.dir == object =>
        {
            above(&call.path)
        }
        _ => call.path.clone(),
    }
}
