/* The limit that merge.py compares with: a[i] = b[i] + c[i] * s, split over threads by the caller,
 * past the caches where the processor can write so. */
#include <stddef.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

void triad(float *a, const float *b, const float *c, float s, size_t n)
{
    size_t i = 0;
#ifdef __SSE__
    const __m128 scale = _mm_set1_ps(s);
    for (; i + 4 <= n; i += 4)
        _mm_stream_ps(a + i, _mm_add_ps(_mm_loadu_ps(b + i), _mm_mul_ps(_mm_loadu_ps(c + i), scale)));
    _mm_sfence();
#endif
    for (; i < n; i++)
        a[i] = b[i] + c[i] * s;
}
