// Package mat is a board's parser and match-action table: it says which of three
// roads a frame takes (plain switching, to the control core, to network tasks), whose
// frame it is, and which flow it belongs to.
//
// Rules are looked at in the order of their priority, the highest first, then in
// the order given; the first that holds decides. A frame for which none holds is switched.
// Rules are written for frames that come from a forward port. On the other ports they
// hold for what goes the other way, source and destination exchanged.
//
// What was decided for a flow is remembered, by all fields that a rule can look
// at, in a table of fixed size: four places a set, one of which is given up when a
// fifth flow comes. A change of the rules forgets it all. So a rule costs a scan for
// the first frame of a flow, and nothing later.
//
// Sources: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.4.1: the three
// roads, and that rules are installed by the control cores. The form of a rule is
// this package's.
package mat
