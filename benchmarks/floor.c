/* The loops of floor_by_hand.py: everything of a step of DLRM but the products of the dense layers. */
#include <math.h>
#include <string.h>

/* BLOCK: vectors whose sums are in registers at the same time, so that no addition waits for the one before. */
enum { TABLES = 26, VECTORS = 27, DIM = 16, WIDTH = 32, PAIRS = 351, AHEAD = 16, BLOCK = 9 };

/* Rows of the ids: vectors 1 and following of each example. */
void take(const int *ids, const float *table, float *vectors, long examples) {
    for (long at = 0; at < examples * TABLES; at++) {
        if (at + AHEAD < examples * TABLES)
            __builtin_prefetch(table + (long)ids[at + AHEAD] * DIM);
        float *to = vectors + (at / TABLES * VECTORS + 1 + at % TABLES) * DIM;
        memcpy(to, table + (long)ids[at] * DIM, DIM * sizeof(float));
    }
}

/* The output of the bottom layers and the products of all pairs of vectors, side by side. */
void interact(float *vectors, const float *bottom, float *features, long examples) {
    for (long example = 0; example < examples; example++) {
        float *own = vectors + example * VECTORS * DIM, *out = features + example * (DIM + PAIRS);
        float by_place[DIM][WIDTH] = {{0}};
        memcpy(own, bottom + example * DIM, DIM * sizeof(float));
        memcpy(out, own, DIM * sizeof(float));
        for (int vector = 0; vector < VECTORS; vector++)
            for (int place = 0; place < DIM; place++)
                by_place[place][vector] = own[vector * DIM + place];
        out += DIM;
        for (int first = 0; first < VECTORS; first += BLOCK) {
            float products[BLOCK][WIDTH] = {{0}};
            for (int place = 0; place < DIM; place++)
#pragma GCC unroll 9
                for (int vector = 0; vector < BLOCK; vector++)
                    for (int other = 0; other < WIDTH; other++)
                        products[vector][other] += own[(first + vector) * DIM + place] * by_place[place][other];
            for (int vector = 0; vector < BLOCK; vector++) {
                memcpy(out, products[vector], (first + vector) * sizeof(float));
                out += first + vector;
            }
        }
    }
}

/* The gradients by all vectors, from the gradients by what `interact` returned. */
void interact_back(const float *vectors, const float *by_features, float *by_vectors, long examples) {
    for (long example = 0; example < examples; example++) {
        const float *own = vectors + example * VECTORS * DIM, *by = by_features + example * (DIM + PAIRS);
        float by_products[VECTORS][VECTORS] = {{0}};
        const float *next = by + DIM;
        for (int vector = 1; vector < VECTORS; vector++)
            for (int other = 0; other < vector; other++)
                by_products[vector][other] = by_products[other][vector] = *next++;
        for (int first = 0; first < VECTORS; first += BLOCK) {
            float sums[BLOCK][DIM] = {{0}};
            if (first == 0)
                memcpy(sums, by, DIM * sizeof(float));
            for (int other = 0; other < VECTORS; other++)
#pragma GCC unroll 9
                for (int vector = 0; vector < BLOCK; vector++)
                    for (int place = 0; place < DIM; place++)
                        sums[vector][place] += by_products[first + vector][other] * own[other * DIM + place];
            memcpy(by_vectors + (example * VECTORS + first) * DIM, sums, sizeof(sums));
        }
    }
}

/* ReLU of the values plus a bias, in place. */
void activate(float *values, const float *bias, long examples, long units) {
    for (long example = 0; example < examples; example++)
        for (long unit = 0; unit < units; unit++)
            values[example * units + unit] = fmaxf(values[example * units + unit] + bias[unit], 0);
}

/* The gradient by the linear output of a layer with ReLU, in place. */
void deactivate(const float *outputs, float *gradient, long size) {
    for (long at = 0; at < size; at++)
        gradient[at] = outputs[at] > 0 ? gradient[at] : 0;
}

/* Adagrad on `size` weights. */
void move(float *weight, float *slot, const float *gradient, long size, float rate, float epsilon) {
    for (long at = 0; at < size; at++) {
        slot[at] += gradient[at] * gradient[at];
        weight[at] -= rate * gradient[at] / sqrtf(slot[at] + epsilon);
    }
}

/* Adagrad on the rows of one table, each row once. `places` is -1 for all rows, before and after. */
static void move_rows_of(long column, const int *ids, const float *by_vectors, float *table, float *slots,
                         int *places, int *distinct, float *sums, long examples, float rate, float epsilon) {
    long count = 0;
    for (long example = 0; example < examples; example++) {
        if (example + AHEAD < examples) {
            __builtin_prefetch(places + ids[(example + AHEAD) * TABLES + column], 1);
            __builtin_prefetch(by_vectors + ((example + AHEAD) * VECTORS + 1 + column) * DIM);
        }
        int row = ids[example * TABLES + column];
        const float *gradient = by_vectors + (example * VECTORS + 1 + column) * DIM;
        if (places[row] < 0) {
            places[row] = count;
            distinct[count] = row;
            memcpy(sums + count * DIM, gradient, DIM * sizeof(float));
            count++;
        } else {
            for (int place = 0; place < DIM; place++)
                sums[(long)places[row] * DIM + place] += gradient[place];
        }
    }
    for (long at = 0; at < count; at++) {
        if (at + AHEAD < count) {
            __builtin_prefetch(table + (long)distinct[at + AHEAD] * DIM, 1);
            __builtin_prefetch(slots + (long)distinct[at + AHEAD] * DIM, 1);
        }
        long row = distinct[at];
        places[row] = -1;
        move(table + row * DIM, slots + row * DIM, sums + at * DIM, DIM, rate, epsilon);
    }
}

/* The same on the tables from `first` up to `end`. */
void move_rows(long first, long end, const int *ids, const float *by_vectors, float *table, float *slots, int *places,
               int *distinct, float *sums, long examples, float rate, float epsilon) {
    for (long column = first; column < end; column++)
        move_rows_of(column, ids, by_vectors, table, slots, places, distinct, sums, examples, rate, epsilon);
}
