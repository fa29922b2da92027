// Package graph turns a passive description (Spec) of ports, apps and links
// into running workers, and changes them under traffic: Diff makes a printable
// Plan of two Specs, and a Plan is applied between breaths.
package graph
