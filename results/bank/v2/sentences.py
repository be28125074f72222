"""The sentences of the page that have numbers in them; `study.numbers` fills them in."""

RECOMMENDATION = """\
For inputs longer than those in training, use **FoX** or **KERPLE**. Over five tasks that need order they \
score {mean/fox:.2f} and {mean/kerple_log:.2f} on average, and ALiBi, the next, {mean/alibi:.2f}. Each of \
the two is ahead of all ten other encodings in at least {ahead} of 12 configurations; the two are \
tied[^tied]. A training step takes {cost/kerple_log:.2f} times as long with KERPLE as without an encoding,\
 {cost/fox:.2f} with FoX, {cost/alibi:.2f} with ALiBi and {cost/rope:.2f} with RoPE.

- **Retrieval and recall**: KERPLE, FoX or ALiBi. On `induction` (recalling what followed a mark) the \
three tie ({induction/kerple_log/score:.2f}, {induction/fox/score:.2f}, {induction/alibi/score:.2f}), and \
the nine others score significantly lower (RoPE {induction/rope/score:.2f}). On `lag` (repeating the \
symbol three back) FoX scores {lag/fox/score:.2f} where it learned the task, but it failed with two layers\
 and 40 symbols. If these failures count as 0, it scores {lag/fox/0:.2f} and ties with five encodings, \
among them RoPE ({lag/rope/0:.2f}).
- **Copying**: KERPLE ({copy/kerple_log/score:.2f}; FIRE, the next, {copy/fire/score:.2f}). It copies \
{copy/kerple_log/2x:.0%} of the inputs of twice the training length and {copy/kerple_log/4x:.0%} of those \
of four times, where no other encoding copies more than {copy/others/4x:.0%}. It needs long training \
inputs: at twice the length it copies {copy/kerple_log/2x/trained to 12:.0%} after training on up to 12 \
symbols and {copy/kerple_log/2x/trained to 24:.0%} after up to 24. KERPLE is best in \
{copy/kerple_log/first:.1f}% of bootstraps over configurations; at four times the length alone, no \
difference is significant.
- **State**: FoX ({flip_flop/fox/score:.2f} on `flip_flop`, recalling the bit written last; KERPLE, the \
next, {flip_flop/kerple_log/score:.2f}). It is best in {flip_flop/fox/first:.0f}% of bootstraps and \
significantly better than every encoding it can be compared with. At twice the training length KERPLE and \
RoPE with random positions still tie with it.
- **Text**: FoX, KERPLE or ALiBi. From 256 to 2,048 bytes of context their loss stays as it is (it rises \
by {text/flat/rise:.2f} bits per byte), while RoPE's rises by {text/rope/rise:.2f}, or by \
{text/rope_yarn/rise:.2f} with YaRN. FoX and ALiBi stay flat with six layers and on prose, too; KERPLE was\
 not tried there. No encoding benefits from the longer context.

These are answers about default arguments. With an initial gate of 4 instead of 0, for example, FoX copies\
 {gate/4:.2f} instead of {gate/0:.2f} of the inputs of twice the training length (two layers, five seeds).

[^tied]: *Tied*: not significantly different."""

CHOSEN = """\
The best of twelve equally good encodings, chosen and tested on the same configurations, has at least one \
other *lower* in {false:.0f}% of simulations, not 5%. *Lower, calibrated* counts the differences that \
remain when this share is 5%."""

FACTORS_IN_WORDS = """\
- *Training length* matters for KERPLE: trained to 12 symbols it scores {lag/kerple_log/score/trained to\
 12:.2f} on `lag`, trained to 24 {lag/kerple_log/score/trained to 24:.2f}. Its exact match on `copy` is \
{copy/kerple_log/2x/trained to 12:.2f} and {copy/kerple_log/2x/trained to 24:.2f} at twice these lengths, \
{copy/kerple_log/4x/trained to 12:.2f} and {copy/kerple_log/4x/trained to 24:.2f} at four times.
- *Depth* matters for copying with ALiBi and T5: with two layers their exact match at twice the length \
is {copy/alibi/2x/2 layers:.2f} and {copy/t5/2x/2 layers:.2f}, with four {copy/alibi/2x/4 layers:.2f} and \
{copy/t5/2x/4 layers:.2f}. Without an encoding, two layers do not learn to copy at all.
- *Heads and symbols* matter for RoPE on `lag`: {lag/rope/score/2 heads:.2f} with two heads, \
{lag/rope/score/4 heads:.2f} with four; {lag/rope/score/few symbols:.2f} with 10 symbols, \
{lag/rope/score/many symbols:.2f} with 40."""

EFFORT = """\
{runs:,} runs took {seconds:.0f} seconds each on one core, on average. Encodings learned the task in \
{learned:.0f}% of all cases."""
