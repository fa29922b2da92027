// Package police limits the rate of traffic. The function police colours packets by two token buckets, and marks
// or drops them by colour. The function shape delays frames until there are tokens for them.
//
// Sources: RFC 2697 (one rate, three colours), RFC 2698 (two rates, three colours), RFC 2597 (drop precedence of
// assured forwarding), RFC 2474 (DSCP).
//
// Rates are in bits or packets a second, bursts in bytes or packets. A policer counts the bytes of IP datagrams,
// as the RFCs say; a shaper counts frames without FCS. Tokens are counted in billionths: a nanosecond brings r of
// them at a rate of r tokens a second. So nothing is rounded, whatever the rate, and however often a bucket is
// looked at. (The meters of nf/p4 have another arithmetic, because they must give the same colours as bmv2, which
// counts whole microseconds since a meter was configured.)
//
// Each worker has its own meters and queues. If a port has several queues, a rate applies to what one worker
// sees.
package police
