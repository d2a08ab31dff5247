//! Links: carry residual rows from one stage to the next.
