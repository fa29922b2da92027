// Package figure reruns published figures in the rack simulator and compares every point and every ratio with
// the published one, as a table, as JSON and as a picture.
//
// A figure is published data (published/*.json), the jobs that rerun it, the ratios that its authors claim
// from it, and the physical reasons for which points may differ. A Result is a function of the figure and of
// Params: the same seed gives the same bytes.
package figure
