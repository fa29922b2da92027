// ring - ranks of MPI that pass messages around and check each of them.
//
//	ring SECONDS
//
// In turns: messages of 8 bytes to 256 KiB around the ring, both ways at once;
// a sum over all; and one-sided operations on rank 0's window: a counter that
// all fetch and increase, and words that each writes and reads back. The exit
// status is 0, or 1 when something was not as it should be.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 256 << 10, WORDS = 64 };

static int rank, ranks;
static unsigned char out[2][LONGEST], in[2][LONGEST];

static void wrong(const char *what, long round) {
	printf("rank %d, round %ld: %s\n", rank, round, what);
	fflush(stdout);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char filled(int from, long round, int way, int i) { return from * 31 + round * 7 + way * 3 + i; }

// pass sends length bytes to both neighbours.
static void pass(long round, int length) {
	int next[2] = {(rank + 1) % ranks, (rank + ranks - 1) % ranks};
	MPI_Request all[4];
	for (int way = 0; way < 2; way++) {
		for (int i = 0; i < length; i++)
			out[way][i] = filled(rank, round, way, i);
		MPI_Irecv(in[way], length, MPI_BYTE, next[!way], way, MPI_COMM_WORLD, &all[way]);
		MPI_Isend(out[way], length, MPI_BYTE, next[way], way, MPI_COMM_WORLD, &all[2 + way]);
	}
	MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
	for (int way = 0; way < 2; way++)
		for (int i = 0; i < length; i++)
			if (in[way][i] != filled(next[!way], round, way, i))
				wrong("a message is not what was sent", round);
}

// reach uses rank 0's memory, words[0] of which is the counter.
static void reach(MPI_Win win, long round) {
	long one = 1, before, words[WORDS], back[WORDS];
	MPI_Aint mine = 1 + rank * WORDS;
	for (int i = 0; i < WORDS; i++)
		words[i] = round * 1000 + rank * 100 + i;
	MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, win);
	MPI_Put(words, WORDS, MPI_LONG, 0, mine, WORDS, MPI_LONG, win);
	MPI_Win_flush(0, win);
	MPI_Get(back, WORDS, MPI_LONG, 0, mine, WORDS, MPI_LONG, win);
	MPI_Win_flush(0, win);
	for (int i = 0; i < WORDS; i++)
		if (back[i] != words[i])
			wrong("a word is not what was put", round);
	if (before < round || before >= (round + 1) * ranks)
		wrong("the counter is out of bounds", round);
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	long *memory;
	MPI_Win win;
	MPI_Win_allocate((1 + ranks * WORDS) * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	for (int i = 0; i < 1 + ranks * WORDS; i++)
		memory[i] = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	double end = MPI_Wtime() + atof(argv[1]);
	long round = 0;
	for (int more = 1; more; round++) {
		for (int length = 8; length <= LONGEST; length *= 8)
			pass(round, length);
		long sum, number = round + rank;
		MPI_Allreduce(&number, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		if (sum != ranks * round + ranks * (ranks - 1) / 2)
			wrong("a sum is wrong", round);
		reach(win, round);
		more = MPI_Wtime() < end;
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0 && memory[0] != round * ranks)
		wrong("the counter is not the number of increments", round);
	if (rank == 0)
		printf("%ld rounds of %d ranks\n", round, ranks);
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
