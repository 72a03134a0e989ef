//! A batch of a caller: how many may be under way, who answers a key, why one failed, where completions wait.

pub(crate) mod backlog;
pub(crate) mod completion_queue;
pub(crate) mod responder;
