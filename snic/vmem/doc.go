// Package vmem is the virtual memory of a board: an address space for each
// network task (NT), single-level page tables over huge pages, and more memory
// than there is, by swapping to other boards.
//
// A space belongs to a tenant. A range of it is usable after Reserve, for
// reading, writing or both. Physical pages (frames) are allocated at the first
// access, from a free list, and hold zeros then: nobody sees what another left.
// An access outside of what is reserved, or against its permission, is a fault:
// it stops that space, and no other. What a stopped space has stays until it is
// closed.
//
// A Memory is what owners of spaces call. Its pager brings pages into frames and out of them, and knows who
// waits; frames are the physical pages and their age, shares what tenants have and have a right to.
//
// # When memory is full
//
// A frame that somebody needs is taken from the tenant that has most above its
// share, and of its pages the one that was not accessed for longest. Shares are
// those of weighted dominant resource fairness (snic/drf) with memory as the
// resource: what a tenant has and waits for is its demand. A tenant that is told
// to have a greater share of another resource (SetOther) is weighed by that
// one: a tenant that has half of an NT and has touched a quarter of the memory
// has a right to half the memory of one that has only that quarter. Nobody is
// taken below its share for another; who has its share and wants more gives up
// a page of its own. Pages that were swapped out and are not accessed are no
// demand. Without shares (SetFair) it is the page of all tenants that was not
// accessed for longest.
//
// The page goes to the Remote, the memory of other boards. An access to such a
// page, or one that needs a frame of others, returns Wait; Next then tells when
// to try again. A caller that is told should try at once, or the page may be gone again. An access that crosses pages moves what it can and says how much; so a
// space goes on even when it has a single frame. When nobody has room a new
// page is Refused, and so is Reserve: it wants room here or elsewhere for all
// that was reserved and not yet used.
//
// One frame is kept for pages that come back: when all boards are full a page
// can return only before another leaves.
//
// # Time
//
// Nothing here has a clock. An operation of the Remote begins here and ends by
// Done, called by the body, live or simulated, when its time has come; what it
// takes is the body's to say.
//
// A space, a tenant: small integers that the owner chooses. Nothing is safe for
// use by two goroutines at a time. An access that hits allocates nothing. A frame
// that was used before is cleared before anybody has it: by Scrub, as much at a
// time as its caller likes, or at the first touch if that clears no more than
// Config.Clear. A touch that would have to clear more waits for Scrub. Frames that
// were never used hold zeros, as the machine gives them.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.4.5.
package vmem
