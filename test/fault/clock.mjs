/** For `node --import`: this process believes it is EARMARK_TEST_CLOCK_MS later than it is. */
const shift = Number(process.env.EARMARK_TEST_CLOCK_MS);
const RealDate = Date;

globalThis.Date = class Shifted extends RealDate {
  constructor(...args) {
    if (args.length === 0) super(RealDate.now() + shift);
    else super(...args);
  }

  static now() {
    return RealDate.now() + shift;
  }
};
