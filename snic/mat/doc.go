// Package mat is a board's parser and match-action table: it says which of three
// roads a frame takes (plain switching, to the control core, to network tasks), whose
// frame it is, and which flow it belongs to.
//
// The first rule that matches a frame decides. Rules are in the order of their priority, the highest
// first, and of equal priority in the order given. A frame that matches no rule is switched. Rules are
// written for frames that come in by a forward port. For frames of the other ports, which go the
// opposite way, source and destination of a rule are exchanged.
//
// The table remembers the decision for a flow, by all fields that a rule can look at. It has a fixed
// size: sets of four flows; a fifth flow of a set replaces one of them. A change of the rules empties
// it. So only the first frame of a flow costs a scan of the rules, as long as the flow is in the table.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.4.1, for the three roads and for
// rules that the control cores install. This package defines the form of a rule.
package mat
