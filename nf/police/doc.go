// Package police limits the rate of traffic. The function police colours packets by two token buckets, and marks
// or drops them by colour. The function shape delays frames until there are tokens for them.
package police
