//! The split: a pure planner, its plan, itemised bytes.
