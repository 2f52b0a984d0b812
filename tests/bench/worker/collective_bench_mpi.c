/* Open MPI's all-reduce for collective_bench.py: same rounds, same lines. Built by it with mpicc where that exists. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int rounds = atoi(argv[1]);
  double* times = malloc(sizeof(double) * (size_t)rounds);
  for (int a = 2; a < argc; ++a) {
    const size_t bytes = strtoul(argv[a], NULL, 10);
    float* data = calloc(bytes, 1);
    const int repeat = bytes < 65536 ? 100 : 1;
    for (int i = -3; i < rounds; ++i) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double before = MPI_Wtime();
      for (int k = 0; k < repeat; ++k) {
        MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      }
      if (i >= 0) times[i] = (MPI_Wtime() - before) * 1e6 / repeat;
    }
    qsort(times, (size_t)rounds, sizeof(double), by_value);
    if (rank == 0) {
      printf("mpi %d %zu %.2f %.2f\n", size, bytes, times[0], times[rounds / 2]);
      fflush(stdout);
    }
    free(data);
  }
  free(times);
  MPI_Finalize();
  return 0;
}
