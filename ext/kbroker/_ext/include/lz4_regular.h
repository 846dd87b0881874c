/* LZ4 blocks of regular content, decoded in half the time that a general decoder takes.
 *
 * A block is a chain of sequences: a token with two lengths, literals, and the distance of a match. The next
 * token's place depends on this one's lengths, so a decoder that computes it waits eight cycles for each. Text of
 * recurring words is nearly all sequences of three bytes, without literals and with a short match: here two of them
 * are guessed at a time, one predicted branch tells whether the guess was right, and nothing waits. Wherever
 * wrong guesses cost more than right ones save, the block is given up for a general decoder.
 *
 * What is accepted here, LZ4_decompress_safe accepts with the same result, given as much room; -1 means nothing but
 * "ask it". Source: LZ4 Block Format Description. Oracle: liblz4.
 */
#ifndef KBROKER_LZ4_REGULAR_H
#define KBROKER_LZ4_REGULAR_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LZ4_LIKELY(x) __builtin_expect(!!(x), 1)
#define LZ4_UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    LZ4_MATCH_MIN = 4,
    /* SAFETY: further than a step of lz4_regular_decode reads or writes from where it starts, but for lengths of
     * more than a token, which are checked one by one; so within these margins nothing else is. Room for the rules
     * of a block's end too: 5 bytes of literals, the last match 12 bytes before the end. */
    LZ4_INPUT_MARGIN = 48,
    LZ4_OUTPUT_MARGIN = 96,
    /* A wrong guess costs about as much as four right ones save: 24 bytes of input. */
    LZ4_GUESS_COST = 24,
    /* Sequences done without a guess behind one that was wrong: odd ones come in groups. */
    LZ4_ODD_GROUP = 3,
};

/* Both tokens of two three-byte sequences at `pair`: no literals, a match of at most 16 bytes (12 + 4). */
#define LZ4_PAIR_PLAIN(pair) ((((pair) | ((pair) + 0x03000003u)) & 0xF00000F0u) == 0)

static inline void lz4_copy16(uint8_t *to, const uint8_t *from)
{
    uint8_t piece[16];
    memcpy(piece, from, 16);
    memcpy(to, piece, 16);
}

static inline size_t lz4_distance(const uint8_t *p)
{
    return (size_t)p[0] | (size_t)p[1] << 8;
}

/* Whether 16 bytes can be copied at once from `distance` (1 to 65535) before `out`, in a block that starts at `start`. */
static inline int lz4_far(const uint8_t *start, const uint8_t *out, size_t distance)
{
    return LZ4_LIKELY((uintptr_t)out - distance >= (uintptr_t)start) && LZ4_LIKELY(distance >= 16);
}

/* Add the bytes that extend a token's length of 15; the byte after them, NULL if they are cut short. */
static inline const uint8_t *lz4_extend(const uint8_t *in, const uint8_t *in_end, size_t *length)
{
    uint8_t more;
    do {
        if (in == in_end)
            return NULL;
        more = *in++;
        *length += more;
    } while (more == 255);
    return in;
}

/* A copy that may overlap itself, to the byte. */
static inline void lz4_copy_match(uint8_t *out, size_t distance, size_t length)
{
    for (; length > distance; length -= distance, out += distance, distance *= 2)
        memcpy(out, out - distance, distance);
    memcpy(out, out - distance, length);
}

struct lz4_place {
    const uint8_t *in;
    uint8_t *out;
};

/* One sequence of any shape, every step checked. 0: there is more, 1: it was the last, -1: malformed. */
static int lz4_careful_step(
    struct lz4_place *at, const uint8_t *in_end, const uint8_t *start, const uint8_t *out_end)
{
    const uint8_t *in = at->in;
    uint8_t *out = at->out;
    if (in == in_end)
        return -1;
    size_t literals = *in >> 4, match = *in & 15, distance;
    in++;
    if (literals == 15 && (in = lz4_extend(in, in_end, &literals)) == NULL)
        return -1;
    if (literals > (size_t)(in_end - in) || literals > (size_t)(out_end - out))
        return -1;
    memcpy(out, in, literals);
    in += literals;
    out += literals;
    at->in = in;
    at->out = out;
    if (in == in_end)
        return 1;
    /* A distance, a token and 5 literals must follow; the match and they must fit. */
    if (in_end - in < 8 || out_end - out < 12)
        return -1;
    distance = lz4_distance(in);
    in += 2;
    if (match == 15 && (in = lz4_extend(in, in_end, &match)) == NULL)
        return -1;
    match += LZ4_MATCH_MIN;
    if (distance == 0 || distance > (size_t)(out - start) || in_end - in < 6)
        return -1;
    if (match > (size_t)(out_end - out) || (size_t)(out_end - out) - match < 5)
        return -1;
    lz4_copy_match(out, distance, match);
    at->in = in;
    at->out = out + match;
    return 0;
}

/* One sequence within the margins. `in` of the answer is NULL where the careful step must take it or reject it. */
static inline struct lz4_place lz4_odd_step(
    const uint8_t *in, const uint8_t *in_end, const uint8_t *start, uint8_t *out, const uint8_t *out_end)
{
    const struct lz4_place rejected = {NULL, NULL};
    size_t literals = *in >> 4, match = *in & 15, distance;
    in++;
    if (LZ4_LIKELY(literals != 15)) {
        lz4_copy16(out, in);
    } else {
        in = lz4_extend(in, in_end, &literals);
        if (in == NULL || literals + LZ4_INPUT_MARGIN > (size_t)(in_end - in)
            || literals + LZ4_OUTPUT_MARGIN > (size_t)(out_end - out))
            return rejected;
        for (size_t done = 0; done < literals; done += 16)
            lz4_copy16(out + done, in + done);
    }
    in += literals;
    out += literals;
    distance = lz4_distance(in);
    in += 2;
    if (LZ4_UNLIKELY(match == 15)) {
        in = lz4_extend(in, in_end, &match);
        if (in == NULL || in_end - in < 6 || match + LZ4_OUTPUT_MARGIN > (size_t)(out_end - out))
            return rejected;
    }
    match += LZ4_MATCH_MIN;
    if (LZ4_LIKELY(lz4_far(start, out, distance))) {
        lz4_copy16(out, out - distance);
        for (size_t done = 16; done < match; done += 16)
            lz4_copy16(out + done, out + done - distance);
    } else if (distance == 0 || distance > (size_t)(out - start)) {
        return rejected;
    } else {
        lz4_copy_match(out, distance, match);
    }
    return (struct lz4_place){in, out + match};
}

/* Sequences within the margins, as many as lz4_odd_step can take; where the next one begins. `in` of the answer is NULL
 * when the block is given up. */
static inline struct lz4_place lz4_guessed_run(
    struct lz4_place from, const uint8_t *in_end, const uint8_t *start, const uint8_t *out_end, int64_t *patience)
{
    const uint8_t *in = from.in, *guessed_from = in;
    const uint8_t *in_safe = in_end - in > LZ4_INPUT_MARGIN ? in_end - LZ4_INPUT_MARGIN : in;
    const uint8_t *out_safe = out_end - from.out > LZ4_OUTPUT_MARGIN ? out_end - LZ4_OUTPUT_MARGIN : from.out;
    uint8_t *out = from.out;
    while (LZ4_LIKELY(in < in_safe && out < out_safe)) {
        uint32_t pair;
        memcpy(&pair, in, 4);
        pair = le32toh(pair);
        size_t distance = lz4_distance(in + 1), second = lz4_distance(in + 4);
        if (LZ4_UNLIKELY(!LZ4_PAIR_PLAIN(pair)))
            goto odd;
        if (LZ4_UNLIKELY(!lz4_far(start, out, distance)))
            goto odd;
        lz4_copy16(out, out - distance);
        out += (pair & 15) + LZ4_MATCH_MIN;
        if (LZ4_UNLIKELY(!lz4_far(start, out, second))) {
            in += 3;
            goto odd;
        }
        lz4_copy16(out, out - second);
        out += (pair >> 24 & 15) + LZ4_MATCH_MIN;
        in += 6;
        continue;

    odd:
        *patience += in - guessed_from - LZ4_GUESS_COST;
        if (*patience < 0)
            return (struct lz4_place){NULL, NULL};
        int left = LZ4_ODD_GROUP;
        do {
            struct lz4_place next = lz4_odd_step(in, in_end, start, out, out_end);
            if (next.in == NULL)
                return (struct lz4_place){in, out};
            in = next.in;
            out = next.out;
        } while (--left > 0 && in < in_safe && out < out_safe);
        guessed_from = in;
    }
    return (struct lz4_place){in, out};
}

/* Decode the block of `size` bytes at `in` into at most `room` at `start`, all of which may be written to. Returns the
 * size of its content, or -1 when a general decoder has to look at it. *patience is how many bytes of input wrong
 * guesses may cost more than right ones save; below 0 afterwards: the block was given up. */
static int64_t lz4_regular_decode(const uint8_t *in, size_t size, uint8_t *start, size_t room, int64_t *patience)
{
    const uint8_t *in_end = in + size, *out_end = start + room;
    struct lz4_place at = {in, start};
    int outcome;
    do {
        at = lz4_guessed_run(at, in_end, start, out_end, patience);
        if (at.in == NULL)
            return -1;
        outcome = lz4_careful_step(&at, in_end, start, out_end);
    } while (outcome == 0);
    return outcome < 0 ? -1 : at.out - start;
}

#endif
