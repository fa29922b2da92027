// Package police holds traffic to rates: police colours packets by two token
// buckets and marks or drops them by colour, shape lets frames wait for their
// tokens.
//
// Sources: RFC 2697 (one rate, three colours), RFC 2698 (two rates, three
// colours), RFC 2597 (drop precedence of assured forwarding), RFC 2474 (DSCP).
//
// Rates are in bits or packets a second, bursts in bytes or packets. A policer
// counts IP datagrams, as the RFCs say, a shaper frames without FCS. Tokens are
// counted in billionths, one nanosecond of one token a second: nothing is
// rounded, at any rate and however often a bucket is looked at. (The meters of
// nf/p4 have an arithmetic of their own: they give the colours that bmv2 gives,
// which counts whole microseconds since a meter was configured.)
//
// Each worker has its own meters and queues. Where a port has several queues, a
// rate holds for what one worker sees.
package police
