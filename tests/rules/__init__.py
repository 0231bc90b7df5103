"""The rules of spec/rules, one module per chapter, through the public interface only."""
