//! The order in which modules are loaded, several at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex};

use image::modules::{Module, ModuleIndex, canonical};

/// A graph of modules to load, each with the number of modules that it still waits for.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) modules: BTreeMap<&'a str, &'a Module>,
    waits: BTreeMap<&'a str, usize>,
    unblocks: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        index: &'a ModuleIndex,
        wanted: &[&'a Module],
        done: &BTreeSet<String>,
    ) -> Self {
        let mut plan = Self {
            modules: BTreeMap::new(),
            waits: BTreeMap::new(),
            unblocks: BTreeMap::new(),
        };
        for module in wanted {
            for load in index.order(module) {
                if !done.contains(&load.module.name) {
                    plan.modules.insert(&load.module.name, load.module);
                }
            }
        }
        let modules: Vec<&'a Module> = plan.modules.values().copied().collect();
        for module in &modules {
            plan.waits.entry(&module.name).or_default();
            for before in module.dependencies.iter().chain(&module.soft) {
                plan.edge(before, &module.name);
            }
            for after in &module.post {
                plan.edge(&module.name, after);
            }
        }
        plan
    }

    /// Adds the edge that `before` is loaded before `after`, if both are in the plan and the opposite edge is not.
    fn edge(&mut self, before: &str, after: &str) {
        let (before, after) = (canonical(before), canonical(after));
        let known = |name: &str| self.modules.get_key_value(name).map(|(key, _)| *key);
        if let (Some(before), Some(after)) = (known(&before), known(&after))
            && before != after
            && !self.reaches(after, before)
            && !self
                .unblocks
                .get(before)
                .is_some_and(|list| list.contains(&after))
        {
            self.unblocks.entry(before).or_default().push(after);
            *self.waits.entry(after).or_default() += 1;
        }
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        self.unblocks.get(from).is_some_and(|list| {
            list.iter()
                .any(|next| *next == to || self.reaches(next, to))
        })
    }

    /// Calls `load` for each module after those that it waits for, on at most `threads` threads.
    pub(super) fn run(self, threads: usize, load: impl Fn(&Module) + Sync) {
        struct Progress<'a> {
            ready: VecDeque<&'a str>,
            waits: BTreeMap<&'a str, usize>,
            left: usize,
        }
        let threads = threads.min(self.modules.len());
        let ready = self.waits.iter().filter(|(_, waits)| **waits == 0);
        let progress = Mutex::new(Progress {
            ready: ready.map(|(name, _)| *name).collect(),
            left: self.modules.len(),
            waits: self.waits,
        });
        let changed = Condvar::new();
        let work = || {
            let mut now = progress.lock().unwrap_or_else(|e| e.into_inner());
            while now.left > 0 {
                let Some(name) = now.ready.pop_front() else {
                    now = changed.wait(now).unwrap_or_else(|e| e.into_inner());
                    continue;
                };
                drop(now);
                load(self.modules[name]);
                now = progress.lock().unwrap_or_else(|e| e.into_inner());
                now.left -= 1;
                for next in self.unblocks.get(name).into_iter().flatten() {
                    if let Some(waits) = now.waits.get_mut(next) {
                        *waits -= 1;
                        if *waits == 0 {
                            now.ready.push_back(next);
                        }
                    }
                }
                changed.notify_all();
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
    }
}
