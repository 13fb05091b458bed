/* Beam search for one image, as captioner/model/search/beam.py does it for many.
 *
 * BeamSearch.search(advance, settings, markers, wanted)   a promise of up to `wanted` captions, the best first:
 *     {ids, logProb, ended, probabilities, alphas, betas}, the last three one for each word
 *   advance   async (words, parents) => {logProbs, alpha, beta}: read the word of each of K beams, which go on from the
 *             K rows `parents` of the state before; Float32Arrays of K * V, K * L and K numbers
 *   settings  the search of model.json: beam, length_power, minimum_length, maximum_length, no_repeat
 *   markers   those of model.json: the ids of pad, start, end and unknown
 */
"use strict";

const BeamSearch = (() => {
  /* Leave only what may follow the words said so far; scores are changed in place. */
  function forbid(scores, said, settings, markers) {
    if (said.length === settings.maximum_length) {
      const end = scores[markers.end];
      scores.fill(-Infinity)[markers.end] = end;
      return scores;
    }
    for (const marker of [markers.pad, markers.start, markers.unknown]) scores[marker] = -Infinity;
    if (said.length < settings.minimum_length) scores[markers.end] = -Infinity;
    const span = settings.no_repeat;
    const tail = said.slice(said.length - span + 1);
    for (let place = 0; span && place + span <= said.length; place++) {
      if (tail.every((word, offset) => said[place + offset] === word)) scores[said[place + span - 1]] = -Infinity;
    }
    return scores;
  }

  /* The `count` best ways on from all beams, the best first: {total, beam, word, score}. */
  function bestWays(beams, scores, count) {
    const ways = [];
    beams.forEach((beam, row) => {
      scores[row].forEach((score, word) => {
        const total = Math.fround(beam.total + score); // in single precision, as the package adds
        if (total === -Infinity || (ways.length === count && total <= ways[count - 1].total)) return;
        let place = ways.length;
        while (place > 0 && ways[place - 1].total < total) place--;
        ways.splice(place, 0, { total, beam: row, word, score });
        if (ways.length > count) ways.pop();
      });
    });
    return ways;
  }

  function rank(total, length, settings) {
    return Math.fround(total / Math.fround((length + 1) ** settings.length_power));
  }

  /* Whether nothing that is still going can come among the best. */
  function isCertain(finished, going, settings, best) {
    const ended = finished.filter((each) => each.ended);
    if (ended.length >= settings.beam) return true;
    const leaders = ended.map((each) => each.rank).sort((one, other) => other - one);
    if (!going.length || leaders.length < best) return !going.length;
    // More words only lower a log probability, and the longest caption divides it most.
    return rank(going[0].total, settings.maximum_length, settings) <= leaders[best - 1];
  }

  async function search(advance, settings, markers, wanted) {
    const best = Math.min(wanted, settings.beam);
    let beams = [{ ids: [], total: 0, trace: null, row: 0 }];
    const finished = [];
    const finish = (beam, total, ended) =>
      finished.push({ ...beam, total, ended, rank: rank(total, beam.ids.length, settings) });
    while (beams.length) {
      const words = beams.map((beam) => beam.ids.at(-1) ?? markers.start);
      const step = await advance(words, beams.map((beam) => beam.row));
      const size = step.logProbs.length / beams.length;
      const regions = step.alpha.length / beams.length;
      const scores = beams.map((beam, row) =>
        forbid(step.logProbs.slice(row * size, (row + 1) * size), beam.ids, settings, markers)
      );
      beams.forEach((beam, row) => {
        if (scores[row].every((score) => score === -Infinity)) finish(beam, beam.total, false); // no word may follow
      });
      // Twice as many as beams: each may end only once, so that all of them go on. Only an end among as many as there
      // are beams counts.
      const ways = bestWays(beams, scores, 2 * settings.beam);
      for (const way of ways.slice(0, settings.beam)) {
        if (way.word === markers.end) finish(beams[way.beam], way.total, true);
      }
      const going = ways.filter((way) => way.word !== markers.end).slice(0, settings.beam);
      const before = beams;
      beams = isCertain(finished, going, settings, best) ? [] : going.map(({ total, beam, word, score }) => {
        const alpha = step.alpha.slice(beam * regions, (beam + 1) * regions);
        const trace = { before: before[beam].trace, score, alpha, beta: step.beta[beam] };
        return { ids: [...before[beam].ids, word], total, trace, row: beam };
      });
    }
    // Those that ended come before those cut off, each by rank; sorting is stable.
    finished.sort((one, other) => other.ended - one.ended || other.rank - one.rank);
    return finished.slice(0, best).map(read);
  }

  /* A caption with what was noted of each of its words. */
  function read({ ids, total, ended, trace }) {
    const links = [];
    for (let link = trace; link; link = link.before) links.unshift(link);
    return {
      ids,
      logProb: total,
      ended,
      probabilities: links.map((link) => Math.min(Math.exp(link.score), 1)),
      alphas: links.map((link) => link.alpha),
      betas: links.map((link) => Math.min(Math.max(link.beta, 0), 1)),
    };
  }

  return Object.freeze({ search });
})();
