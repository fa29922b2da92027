// Package vmem is the virtual memory of a board: an address space for each
// network task (NT), single-level page tables over huge pages, and more memory
// than there is, by swapping to other boards.
//
// A space belongs to a tenant. Reserve makes a range of it usable for reading, writing or both. A
// physical page (frame) is allocated at the first access, from a free list, and then holds zeros, so
// that no space sees what another left. An access outside of reserved ranges, or against their
// permission, is a fault: it stops that space, and no other. A stopped space keeps its pages until it
// is closed.
//
// Owners of spaces call a Memory. Its pager brings pages into frames and out of them, and knows which spaces wait.
// frames holds the physical pages and their age; shares holds how many frames tenants have and have a right to.
//
// # When memory is full
//
// If a space needs a frame and none is free, the tenant that is furthest above its share gives up its
// least recently accessed page. Shares are those of weighted dominant resource fairness (snic/drf)
// with memory as the resource; a tenant's demand is the frames that it has and waits for. SetOther
// tells a tenant's share of another resource; if that is greater than its share of memory, it counts
// instead: a tenant that has half of an NT and has touched a quarter of the memory has a right to half
// the memory of a tenant that has only that quarter. No tenant is taken below its share for another; a
// tenant that has its share and wants more gives up a page of its own. Pages that are swapped out and
// not accessed are no demand. Without shares (SetFair) the least recently accessed page of all tenants
// is taken.
//
// The page goes to the Remote, the memory of other boards. An access to a page that is there, or an
// access for which a frame must first be taken, returns Wait; Next then says when to try again. The
// caller should try at once, or the page may be gone again. An access that crosses pages moves as much
// as it can and returns how much; so a space makes progress even with a single frame. When no board
// has room, a new page is Refused, and so is Reserve: it wants room, here or elsewhere, for all pages
// that are reserved and not yet used.
//
// One frame is kept for pages that come back, because when all boards are full, a page can return only
// before another leaves.
//
// # Time
//
// A Memory has no clock. It begins operations of the Remote; its caller, live or simulated, decides how
// long they take, and ends them by Done.
//
// Spaces and tenants are small integers that the owner chooses. Only one goroutine at a time may use a
// Memory. An access that hits allocates nothing. A frame that was used before is cleared before a space
// gets it: by Scrub, as much at a time as its caller likes, or at the first touch if that clears no
// more than Config.Clear bytes. A touch that would have to clear more waits for Scrub. Frames that were
// never used hold zeros, as the machine gives them.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), section 5.4.5.
package vmem
