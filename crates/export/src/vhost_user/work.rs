//! The threads that carry requests out, and which requests are under way.
//!
//! Whoever takes a request out of a queue hands it over here. It waits while its queue has as many
//! under way as a queue can hold, so a machine that asks faster than the device answers, or that
//! gives the same buffers again and again, fills nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use vhost_user_backend::{VringMutex, VringT};

use super::config::{QUEUE_SIZE, QUEUES};
use super::disk::{Chain, Disk, room};
use crate::todo::Todo;

/// Requests that run at the same time.
const WORKERS: usize = 8;

/// A request, and where its answer goes.
pub(super) struct Request {
    pub(super) chain: Chain,
    pub(super) vring: VringMutex,
    /// The queue's number.
    pub(super) queue: usize,
}

/// The requests of all queues.
pub(super) struct Work {
    disk: Arc<Disk>,
    todo: Todo<Request>,
    /// For each queue, how many of its requests wait or run.
    under_way: Mutex<[u16; QUEUES]>,
    /// A request is done.
    done: Condvar,
}

impl Work {
    pub(super) fn new(disk: Arc<Disk>) -> Self {
        Self {
            disk,
            todo: Todo::new(QUEUE_SIZE.into()),
            under_way: Mutex::new([0; QUEUES]),
            done: Condvar::new(),
        }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// The system's, if there is none.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<Vec<JoinHandle<()>>> {
        let start = || {
            let work = self.clone();
            let thread = thread::Builder::new().name("vhost-worker".to_owned());
            thread.spawn(move || work.run())
        };
        let first = start()?;
        // Fewer do as well.
        let others = (1..WORKERS).map_while(|_| start().ok());
        Ok(std::iter::once(first).chain(others).collect())
    }

    /// Says that a request of a queue was taken, which is handed over next.
    pub(super) fn begin(&self, queue: usize) {
        self.under_way.lock()[queue] += 1;
    }

    /// Hands a request over, when its queue has no more under way than it can hold.
    pub(super) fn hand_over(&self, request: Request) {
        let queue = request.queue;
        let is_full = |under_way: &mut [u16; QUEUES]| under_way[queue] > QUEUE_SIZE;
        self.done.wait_while(&mut self.under_way.lock(), is_full);
        self.todo.push(request);
    }

    /// Waits until no request of a queue is under way.
    pub(super) fn settle(&self, queue: usize) {
        let is_busy = |under_way: &mut [u16; QUEUES]| under_way[queue] > 0;
        self.done.wait_while(&mut self.under_way.lock(), is_busy);
    }

    /// Waits until none is under way.
    pub(super) fn settle_all(&self) {
        (0..QUEUES).for_each(|queue| self.settle(queue));
    }

    /// Lets the threads end when they have done everything.
    pub(super) fn end(&self) {
        self.todo.end();
    }

    fn run(&self) {
        let mut room = room();
        while let Some(request) = self.todo.next() {
            self.disk.requests.fetch_add(1, Ordering::Relaxed);
            let queue = request.queue;
            let head = request.chain.head_index();
            let len = self.disk.answer(request.chain, &mut room);
            if len.is_none() && self.disk.malformed.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!("the machine's driver sends requests that are none");
            }
            give_back(&request.vring, head, len.unwrap_or(0));
            self.under_way.lock()[queue] -= 1;
            self.done.notify_all();
        }
    }
}

/// Gives the buffers of a request back to the machine, and tells it if it wants to be told.
fn give_back(vring: &VringMutex, head: u16, len: u32) {
    let mut state = vring.get_mut();
    // What fails here is the machine's: the queue is not in its memory any more, or it has named
    // buffers that the queue does not have.
    let given = state.add_used(head, len);
    let wants_to_know = given.is_ok() && state.needs_notification().unwrap_or(true);
    if wants_to_know && let Err(error) = state.signal_used_queue() {
        tracing::debug!("the machine was not told: {error}");
    }
}
